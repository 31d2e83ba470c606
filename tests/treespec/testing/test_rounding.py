"""Honest rounding stays below the bound for it, and what is more does not."""

import pytest
import torch

from treespec import Law, Sampling, TreeShape, verify
from treespec.testing import Case, adversarial_pairs, covers, random_pairs
from treespec.testing.rounding import Rounding

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
    """Seed 11 has a draft of one token that the target hardly wants: K-SEQ accepts 1 - (1 - 0.7 %)^2."""
    assert share(verify.kseq, TreeShape.expansion([2]), 3, 11, dtype) < MARGIN


def share(rule, shape, vocab, seed, dtype):
    largest = 0.0
    for law in sorted(rule.laws, key=str):
        for pair in pairs(rule, vocab, seed, dtype) if covers(rule, shape, law, vocab) else ():
            case = Case(shape, law, pair)
            largest = max(largest, case.prove(rule, case.oracle()).largest_share)
    return largest


def test_a_law_by_hand():
    right = torch.tensor([[0.5, 0.1], [0.3, 0.1]], dtype=torch.float64)
    rounding = Rounding(torch.float64, size=2, vocab=2, chance=0.0)
    assert rounding.unit == (2 * 6 + 1 * 6) * 2**-53
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
    worst = Rounding(torch.float32, size=2, vocab=2, chance=0.0).deviation(found, right)
    assert worst.prefix == (1,)
    assert worst.share > 1e4


def test_relative_errors_where_chances_allow_them():
    right = torch.tensor([1 - 1e-5, 1e-5], dtype=torch.float64)
    found = torch.tensor([1 - 0.9e-5, 0.9e-5], dtype=torch.float64)
    for chance, seen in ((0.0, False), (0.5, True)):
        worst = Rounding(torch.float32, size=2, vocab=2, chance=chance).deviation(found, right)
        assert (worst.share > 1) == seen


def test_a_token_that_the_target_never_gives_is_no_rounding():
    right = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = torch.tensor([1.0, 1e-300], dtype=torch.float64)
    assert Rounding(torch.float64, 2, 2, 0.0).deviation(found, right).share == float("inf")


def test_the_chances_of_a_tree():
    (pair, *_) = (p for p in adversarial_pairs(3, 0) if p.name == "a target that is nearly sure")
    case = Case(TreeShape.chain(1), Law.IID, pair)
    assert case.oracle().rounding.chance == pytest.approx(0.1, rel=1e-2)
    case = Case(TreeShape.expansion([2]), Law.WITHOUT_REPLACEMENT, pair)
    assert case.oracle().rounding.chance == 0  # the second child is nearly surely the sure token
