"""Walks of rules at one node and down a tree, compared with results computed by hand."""

import math

import pytest
import torch

from treespec import TreeShape
from treespec.kernels.walked_tree import walked_tree
from treespec.verify.engine.wrapped import plan_of

LAST = 1 - 2.0**-53
FLAT = TreeShape.expansion([3])
TARGET = torch.tensor([0.5, 0.3, 0.2, 1e-30])  # the same row at the root and all children
DRAFT = torch.tensor([[0.2, 0.2, 0.6, 0.0]])


def walk(kind, tokens, uniforms, target=TARGET, drafts=DRAFT, shape=FLAT, temperature=1.0):
    """The verdict of a walk over rows that are all equal."""
    logits = temperature * target.log().expand(shape.size, -1).contiguous()
    given = [*uniforms, *[0.5] * (shape.size - len(uniforms))]
    drafts = drafts if kind in ("rrs", "rrsw") else None
    return walked_tree(kind, logits, drafts, [0, *tokens], plan_of(shape), given, temperature)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_where_thresholds_lie(temperature):
    def at(kind, tokens, *uniforms):
        return walk(kind, tokens, uniforms, temperature=temperature)

    # p / q of token 2 is 1/3; then p is (3, 1, 0) / 4.
    assert at("rrs", [2, 2, 0], 0.3333, 0.1) == (1, 0, 2)
    # a repeated token has no mass left; the ratio of 0 is 0.75 / 0.2
    assert at("rrs", [2, 2, 0], 0.3334, 0.0, 0.999, 0.1) == (3, 0, 4)
    # without 2 the draft is (1, 1) / 2: the ratio of 1 is 1/4 over 1/2, and then p has all mass on 0
    assert at("rrsw", [2, 1, 0], 0.3334, 0.4999, 0.1) == (2, 0, 3)
    assert at("rrsw", [2, 1, 0], 0.3334, 0.5001, LAST, 0.1) == (3, 0, 4)
    # one after the other, each relative to the mass that elder siblings left
    assert at("onehot", [1, 2, 3], 0.2999, 0.1)[:2] == (1, 0)
    assert at("onehot", [1, 2, 3], 0.3001, 0.2857, 0.1)[:2] == (2, 0)
    assert at("onehot", [1, 2, 3], 0.3001, 0.2858, 0.5, 0.9) == (0, 0, 4)
    # the drawn token, and the child that has it
    assert at("naive", [1, 2, 2], 0.7999, 0.81) == (1, 2, 2)
    assert at("naive", [1, 1, 1], 0.8001) == (0, 2, 1)


def test_the_best_token_of_equal_ones_is_the_first():
    logits = torch.zeros(4, 40)
    logits[0, [7, 33]] = 2.0
    given = plan_of(FLAT), [0.5] * 4, 1.0
    assert walked_tree("greedy", logits, None, [0, 33, 7, 7], *given) == (2, 0, 0)
    assert walked_tree("greedy", logits, None, [0, 33, 33, 33], *given) == (0, 7, 0)


def test_nothing_left_is_nothing_rejected():
    same = torch.tensor([0.25, 0.25, 0.5, 1e-30])
    # p = q: only rounding can reject, and the row remains unchanged
    drafts = same[None].clone()
    drafts[0, 2] = 0.5000001
    node, bonus, used = walk("rrs", [2, 2, 2], [LAST, 0.99999999], same, drafts)
    assert (node, used) in ((1, 2), (2, 3), (3, 4))
    assert 0 <= bonus < 3
    only = torch.tensor([1.0, 1e-30, 1e-30, 1e-30])
    assert walk("onehot", [0, 1, 2], [LAST, 0.0], only)[0] in (1, 2)


def test_a_draft_that_is_used_up_is_uniform_over_the_rest():
    drafts = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    # after 2 (0.2 of 1) p is (5, 3, 0, 0) / 8, and the draft a third each
    assert walk("rrsw", [2, 0, 1], [0.2001, 0.99999, 0.1], drafts=drafts) == (2, 0, 3)
    rest = [0.2001, 0.0, 0.1]
    assert walk("rrsw", [2, 1, 0], rest, drafts=drafts) == (2, 0, 3)
    target = torch.tensor([0.7, 0.1, 0.2, 1e-30])  # then 1 has 1/8 over 1/3
    assert walk("rrsw", [2, 1, 0], [0.2001, 0.3749, 0.1], target, drafts) == (2, 0, 3)
    assert walk("rrsw", [2, 1, 0], [0.2001, 0.3751, 0.5, 0.1], target, drafts) == (3, 0, 4)


def test_masses_whose_inverse_is_no_number():
    least = 1e-40
    drafts = torch.tensor([[1.0 - 2 * least, least, least, 0.0]])
    none = 1e-39  # underflows to 0 in a softmax
    target = torch.tensor([none, 0.5, 0.5, none])
    # without 0 the draft is (1, 1) / 2, like the target
    assert walk("rrsw", [0, 1, 2], [0.1, LAST, 0.1], target, drafts) == (2, 1, 3)
    # p and q differ so little that the residual has all mass on 1
    target, drafts = torch.tensor([0.5, 0.5, none, none]), torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    drafts[0, 2] = least
    node, bonus, _ = walk("rrs", [2, 2, 2], [0.1, 0.1, 0.1, 0.1], target, drafts)
    assert (node, bonus) in {(0, 0), (0, 1)}


def test_what_a_rule_refuses_is_not_decided():
    assert walk("rrs", [3, 0, 0], [0.5]) is None  # the draft cannot have drawn it
    assert walk("rrsw", [0, 1, 3], [LAST] * 3, torch.tensor([0.01, 0.01, 0.98, 1e-30])) is None
    for bad in (math.nan, math.inf):
        logits = TARGET.log().repeat(4, 1)
        logits[2, 1] = bad
        plan = plan_of(FLAT)
        assert (
            walked_tree("onehot", logits, None, [0, 3, 0, 1], plan, [LAST, 0.1, 0.5, 0.5], 1.0)
            is None
        )
        assert walked_tree("onehot", logits, None, [0, 0, 3, 1], plan, [0.1, 0.5, 0.5, 0.5], 1.0)


def test_what_does_not_fit_together():
    logits, plan = torch.zeros(4, 5), plan_of(FLAT)
    good = {
        "kind": "rrs", "logits": logits, "drafts": torch.full((1, 5), 0.2), "tokens": [0, 1, 2, 3],
        "plan": plan, "uniforms": [0.5] * 4, "temperature": 1.0,
    }  # fmt: skip
    assert walked_tree(**good)
    for change in (
        {"logits": logits.double()}, {"logits": logits[:3]}, {"logits": torch.zeros(5, 4).T},
        {"drafts": None}, {"drafts": torch.ones(1, 4)}, {"drafts": torch.ones(0, 5)},
        {"drafts": torch.ones(1, 5).double()}, {"tokens": [0, 1, 2]}, {"tokens": [0, 1, 2, 5]},
        {"tokens": [0, 1, 2, -1]}, {"plan": plan.long()}, {"plan": plan.T.contiguous().T},
        {"uniforms": [0.5] * 3},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="cannot walk a tree"):
            walked_tree(**{**good, **change})
    assert walked_tree(**{**good, "kind": "greedy", "uniforms": [], "drafts": None})
