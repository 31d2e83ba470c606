"""Synthetic acceptance: what is accepted follows the given rates exactly, whatever the tokens are."""

import pickle
from collections.abc import Iterator
from math import sqrt

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape
from treespec.batch import Text, decode_many
from treespec.draft import ModelDrafter, PromptLookup
from treespec.draft.undrafted import Undrafted
from treespec.errors import InvalidArgument
from treespec.search import expected_tokens
from treespec.step import Verdict
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table
from treespec.testing.enumerating_coins import Weight, outcomes
from treespec.tree import TokenTree
from treespec.verify import verifier_for
from treespec.verify.synthetic_acceptance import SyntheticAcceptance

RATES = ((0.5, 0.2, 0.1), (0.6, 0.4), (0.3,))
TABLE = [[*row, *[0.0] * (4 - len(row))] for row in (*RATES, RATES[-1], RATES[-1])]
"""The same rates as search takes them: all ranks, five levels."""
SHAPES = (
    TreeShape.chain(5),
    TreeShape.expansion([3, 2, 1]),
    TreeShape((-1, 0, 1, 1, 0, 0, 4, 0, 6, 2)),
)
TARGET, DRAFT = (TabularModel(random_table(5, seed), 5) for seed in (0, 1))
RULE = SyntheticAcceptance(RATES)


def tree_of(shape: TreeShape, law: Law = Law.DETERMINISTIC) -> TokenTree:
    rows = None if law is Law.DETERMINISTIC else torch.full((len(shape.internal), 16), 1 / 16)
    return TokenTree(shape, torch.arange(shape.size), rows, law)


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree", "uneven"])
def test_acceptance_is_that_of_the_rates(shape: TreeShape) -> None:
    rows = torch.eye(16)[torch.arange(shape.size)]
    found = list(outcomes(lambda coins: RULE(tree_of(shape), rows, coins)))
    assert sum(weight for weight, _ in found) == pytest.approx(1)
    tokens = sum(weight * verdict.emitted for weight, verdict in found)
    assert tokens == pytest.approx(expected_tokens(shape, TABLE), rel=1e-12)
    for child in shape.children[0]:
        share = sum(weight for weight, verdict in found if child in verdict.path)
        assert share == pytest.approx(dict(enumerate(RATES[0])).get(shape.ranks[child], 0.0))
    assert all(verdict.bonus == verdict.path[-1] for _, verdict in found)  # the target's best token


def test_the_law_of_children_and_the_rows_make_no_difference() -> None:
    tables = torch.full((16, 16), 1 / 16), torch.eye(16)[torch.zeros(16).long()]
    laws = Law.DETERMINISTIC, Law.IID, Law.WITHOUT_REPLACEMENT
    found = [[*paths(tree_of(SHAPES[1], law), rows)] for law in laws for rows in tables]
    assert all(each == found[0] for each in found)


def paths(tree: TokenTree, rows: torch.Tensor) -> Iterator[tuple[Weight, tuple[int, ...]]]:
    for weight, verdict in outcomes(lambda coins: RULE(tree, rows, coins)):
        yield weight, verdict.path


def drafters() -> list[ModelDrafter | PromptLookup | Undrafted]:
    cold, warm = Sampling(temperature=0.0), Sampling()
    return [
        ModelDrafter(DRAFT, SHAPES[1], Law.DETERMINISTIC, cold),
        ModelDrafter(DRAFT, SHAPES[1], Law.WITHOUT_REPLACEMENT, warm),
        ModelDrafter(DRAFT, SHAPES[0], Law.IID, warm),
        Undrafted(SHAPES[1], 5),
        Undrafted(SHAPES[0], 5),
    ]


def test_in_a_batch_every_text_keeps_the_expected_tokens() -> None:
    """Of trees and chains beside each other: within five standard errors in the mean of 500 steps."""
    sampling = Sampling()
    texts = [
        Text(
            ModelTarget(TARGET), drafter, verifier_for(RULE, TARGET), torch.tensor([i % 5]), sampling,
            TorchCoins(i), 1000,
        )
        for i, drafter in enumerate(drafters())
    ]  # fmt: skip
    emitted: dict[int, list[int]] = {i: [] for i in range(len(texts))}
    for i, step in decode_many(texts):
        assert not isinstance(step, Exception)
        emitted[i].append(step.verdict.emitted)  # pyrefly: ignore[missing-attribute]
    for i, drafter in enumerate(drafters()):
        assert isinstance(drafter, ModelDrafter | Undrafted)
        counts = torch.tensor(emitted[i], dtype=torch.float64)
        assert len(counts) > 300
        expected = expected_tokens(drafter.growth.shape, TABLE)  # pyrefly: ignore[missing-attribute]
        assert abs(counts.mean() - expected) < 5 * counts.std() / sqrt(len(counts))


def test_the_rule_is_lossy_and_pickles() -> None:
    assert not RULE.lossless
    assert RULE.off_target(tree_of(SHAPES[0]), torch.eye(16)[:6], Verdict((0,), 1)) is None
    assert str(RULE) == "synthetic"
    assert pickle.loads(pickle.dumps(RULE)).rates == RATES


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], r"rates = \[\], but must be rows"),
        ([[0.5, 1.5]], "must be rows of probabilities"),
        ([["x"]], "must be rows of probabilities"),
        ([0.5], "must be rows of probabilities"),
        ([[0.5], [0.7, 0.4]], r"rates\[1\] = \[0.7, 0.4\] sums to 1.1"),
    ],
)
def test_rates_that_cannot_be_are_refused(rates: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SyntheticAcceptance(rates)  # pyrefly: ignore[bad-argument-type]


def test_rates_may_sum_to_one_by_rounding() -> None:
    rule = SyntheticAcceptance([[0.1] * 10])
    shape = TreeShape.expansion([10])
    rows = torch.full((11, 16), 1 / 16)
    found = [(w, v) for w, v in outcomes(lambda coins: rule(tree_of(shape), rows, coins))]
    assert sum(w for w, v in found if v.accepted) == pytest.approx(1)
