"""Rules and drafters with the field's classic bugs. Each must be caught by `assert_lossless`."""

from dataclasses import replace

import pytest
import torch

from treespec import Law, TreeShape, Verdict, verify
from treespec.coins import top_k
from treespec.distributions import residual
from treespec.draft import ModelDrafter
from treespec.testing import NotLossless, assert_lossless
from treespec.verify import NodeChoice, top_down

pytestmark = pytest.mark.usefixtures("without_shape_checks")

IID, WITHOUT = [Law.IID], [Law.WITHOUT_REPLACEMENT]


def per_node(decide):
    def rule(tree, target_probs, coins):
        return top_down(tree, target_probs, coins, decide)

    return rule


@per_node
def residual_not_renormalised(p, q, children, coins):
    left = p
    for child, token in enumerate(children):
        if coins.accept(left[token] / q[token]):
            return NodeChoice(child=child)
        left = (left - q).clamp_min(0)
        if left.sum() == 0:
            left = p
    return NodeChoice(token=coins.draw(left))


@per_node
def residual_forgotten(p, q, children, coins):
    for child, token in enumerate(children):
        if coins.accept(p[token] / q[token]):
            return NodeChoice(child=child)
    return NodeChoice(token=coins.draw(p))


@per_node
def draft_not_masked_after_a_rejection(p, q, children, coins):
    left = p
    for child, token in enumerate(children):
        if coins.accept(left[token] / q[token]):
            return NodeChoice(child=child)
        left = residual(left, q)
    return NodeChoice(token=coins.draw(left))


@per_node
def redraw_on_mismatch(p, q, children, coins):
    for child, token in enumerate(children):
        if coins.draw(p) == token:
            return NodeChoice(child=child)
    return NodeChoice(token=coins.draw(p))


def bonus_from_the_root(tree, target_probs, coins):
    verdict = verify.naive(tree, target_probs, coins)
    return Verdict(verdict.path, coins.draw(target_probs[0])) if verdict.accepted else verdict


def resorted(drafter):
    """Children put in the order of their tokens after they were drawn."""

    class Resorted(drafter):
        def propose(self, coins):
            tree = super().propose(coins)
            tokens = list(tree.token_ids)
            for children in tree.shape.children:
                for node, token in zip(children, sorted(tokens[c] for c in children), strict=True):
                    tokens[node] = token
            return replace(tree, tokens=torch.tensor(tokens))

    return Resorted


class TopKCalledIID(ModelDrafter):
    """Takes the k most probable tokens and says that they were drawn."""

    def propose(self, coins):
        class Fixed(type(coins)):
            def draw_many(self, probabilities, k, law):
                return top_k(probabilities, k)

        return super().propose(Fixed())


WIDE = [TreeShape.expansion([2]), TreeShape.expansion([2, 1])]


@pytest.mark.parametrize(
    ("rule", "laws"),
    [
        (residual_not_renormalised, IID),
        (residual_forgotten, IID),
        (draft_not_masked_after_a_rejection, WITHOUT),
        (redraw_on_mismatch, [Law.DETERMINISTIC]),
        (bonus_from_the_root, IID),
    ],
)
def test_a_biased_rule_fails(rule, laws):
    with pytest.raises(NotLossless) as failure:
        assert_lossless(rule, laws=laws)
    text = str(failure.value)
    assert "largest error" in text
    assert "instead of" in text


def test_rrs_on_top_k_children_fails():
    with pytest.raises(NotLossless):
        assert_lossless(verify.rrs, draft_with=TopKCalledIID)


@pytest.mark.parametrize(("rule", "laws"), [(verify.rrs, IID), (verify.rrsw, WITHOUT)], ids=str)
def test_drawn_children_resorted_by_token_fail(rule, laws):
    with pytest.raises(NotLossless):
        assert_lossless(rule, laws=laws, shapes=WIDE, draft_with=resorted(ModelDrafter))


def test_the_failure_names_the_smallest_tree():
    with pytest.raises(NotLossless) as failure:
        assert_lossless(residual_forgotten, laws=IID)
    assert "\n0\n└─ 1\nlargest" in str(failure.value)
