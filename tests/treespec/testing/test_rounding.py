"""Rounding errors of correct rules stay below their bound, and larger errors exceed it."""

import pytest
import torch

from treespec import Law, Sampling, TreeShape, verify
from treespec.sampling.distributions import residual, without
from treespec.testing import Case, adversarial_pairs, covers, random_pairs
from treespec.testing.enumerating_coins import Choice
from treespec.testing.rounding import Chances, Rounding
from treespec.verify import NodeChoice, Rule, top_down

pytestmark = pytest.mark.usefixtures("without_shape_checks")

MARGIN = 1 / 4

LOSSLESS = [rule for rule in verify.RULES.values() if rule.lossless]
TREES = {
    3: [TreeShape.chain(2), TreeShape.expansion([2])],
    4: [TreeShape.expansion([2]), TreeShape.chain(1)],
    6: [TreeShape.expansion([2])],
}


def pairs(rule, vocab, seed, dtype):
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    yield from random_pairs(vocab, 2, seed, [sampling], dtype)
    yield from adversarial_pairs(vocab, seed, rule.one_hot, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_rules_stay_below_the_bound_for_any_seed(rule, dtype):
    for seed in (1, 11, 23, 40):
        for vocab, shapes in TREES.items():
            for shape in shapes:
                assert share(rule, shape, vocab, seed, dtype) < MARGIN


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_an_acceptance_that_is_one_minus_nearly_one_is_honest(dtype):
    """With seed 11, a draft of one token has target probability 0.7 %: K-SEQ accepts 1 - (1 - 0.7 %)^2."""
    assert share(verify.kseq, TreeShape.expansion([2]), 3, 11, dtype) < MARGIN


def share(rule, shape, vocab, seed, dtype):
    largest = 0.0
    for law in sorted(rule.laws, key=str):
        for pair in pairs(rule, vocab, seed, dtype) if covers(rule, shape, law, vocab) else ():
            case = Case(shape, law, pair)
            largest = max(largest, case.prove(rule, case.oracle()).largest_share)
    return largest


def a_pass_more(p, q, children, coins):
    """`rrs` that normalises every row again before use, by a reciprocal."""
    left = p * (1 / p.sum())
    for child, token in enumerate(children):
        draft = q * (1 / q.sum())
        if coins.accept((left[token] * (1 / draft[token])).clamp_max(1)):
            return NodeChoice(child=child)
        rest = (left - draft).clamp_min(0)
        left = rest * (1 / rest.sum()) if rest.sum() > 0 else left
    return NodeChoice(token=coins.draw(left / left.sum()))


def repeats_skipped(p, q, children, coins):
    """`rrsw` over the distinct tokens of independent children."""
    rejected = []
    for child, token in enumerate(children):
        if token in rejected:
            continue
        draft = without(q, torch.tensor(rejected)) if rejected else q
        if coins.accept(p[token] / draft[token]):
            return NodeChoice(child=child)
        p = residual(p, draft)
        rejected.append(token)
    return NodeChoice(token=coins.draw(p))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("node_rule", [a_pass_more, repeats_skipped])
def test_honest_rules_that_round_more_stay_below_the_bound(node_rule, dtype):
    def decide(tree, target_probs, coins):
        return top_down(tree, target_probs, coins, node_rule)

    rule = Rule(decide, laws={Law.IID}, reference="none")
    for vocab, shapes in TREES.items():
        for shape in shapes:
            assert share(rule, shape, vocab, 11, dtype) < MARGIN


def test_a_law_by_hand():
    right = torch.tensor([[0.5, 0.1], [0.3, 0.1]], dtype=torch.float64)
    rounding = Rounding(torch.float64, size=2, vocab=2, passes=1)
    assert rounding.roundings == 2 * (6 + 3) + 1 * (6 + 3)
    assert rounding.unit == pytest.approx(27 * 2**-53)
    assert rounding.deviation(right, right).share == 0
    found = right.clone()
    found[1] = torch.tensor([0.3 - 1e-13, 0.1 + 1e-13], dtype=torch.float64)
    worst = rounding.deviation(found, right)
    assert (worst.prefix, worst.token) in {((1,), 0), ((1,), 1)}
    assert worst.share == pytest.approx(1e-13 / 0.4 / rounding.unit, rel=1e-3)


def test_behind_an_improbable_token_as_much_is_asked_as_elsewhere():
    right = torch.tensor([[1 - 1e-9, 0], [0.5e-9, 0.5e-9]], dtype=torch.float64)
    found = right.clone()
    found[1] = torch.tensor([0.4e-9, 0.6e-9], dtype=torch.float64)
    worst = Rounding(torch.float32, size=2, vocab=2).deviation(found, right)
    assert worst.prefix == (1,)
    assert worst.share > 1e4


def test_relative_errors_where_chances_allow_them():
    right = torch.tensor([1 - 1e-9, 1e-9], dtype=torch.float64)
    found = torch.tensor([1 - 0.9e-9, 0.9e-9], dtype=torch.float64)
    for chance, seen in ((0.0, False), (1e-6, False), (0.5, True)):
        worst = Rounding(torch.float32, size=2, vocab=2).deviation(found, right, chance)
        assert (worst.share > 1) == seen


def test_a_token_that_the_target_never_gives_is_no_rounding():
    right = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = torch.tensor([1.0, 1e-300], dtype=torch.float64)
    assert Rounding(torch.float64, 2, 2).deviation(found, right).share == float("inf")


def test_the_chances_that_a_rule_meets():
    (pair, *_) = (p for p in adversarial_pairs(3, 0) if p.name == "a target that is nearly sure")
    (plain,) = (p for p in adversarial_pairs(3, 0) if p.name == "a draft of two tokens")

    def met(rule, shape, law, pair):
        return Case(shape, law, pair).oracle().law(rule).chance

    one, two = TreeShape.chain(1), TreeShape.expansion([2])
    assert met(verify.rrs, one, Law.IID, pair) == pytest.approx(0.1, rel=1e-2)
    assert met(verify.rrs, TreeShape.chain(2), Law.IID, plain) > 0.01
    # One of two distinct children is almost certainly the sure token, so almost nothing is rejected.
    assert met(verify.rrsw, two, Law.WITHOUT_REPLACEMENT, pair) < 0.01
    assert met(verify.naive, two, Law.IID, pair) == 1


def test_the_chances_of_walks_by_hand():
    heads, tails, draw = Choice(True, True), Choice(True, False), Choice(False, False)
    chances = Chances()
    chances.add(0.5, [0, 1], [heads, tails, draw])  # coins below an accepted child count too
    chances.add(0.1, [0, 1], [heads, heads, draw, tails])
    chances.add(0.4, [1, 1], [tails, draw])
    assert chances.least == pytest.approx(0.1 / 0.6)
    assert Chances().least == 1
