"""Every lossless rule, proved by enumeration: on all small trees, in exact arithmetic, on tiny masses."""

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TreeShape, verify
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    covers,
    outcomes,
    plane_trees,
    step_law,
    target_law,
)

LOSSLESS = [rule for rule in verify.RULES.values() if rule.lossless]
BIG = [TreeShape.expansion(k) for k in ([2, 1], [1, 3], [4], [1, 1, 1, 1])]
BIG += [TreeShape.independent_chains(2, 2), TreeShape.from_parents([-1, 0, 0, 1, 2, 2])]
"""Trees of five and more nodes, in addition to all trees of up to four."""

MANY = ("naive", "traversal", "canonical", "optimal_transport", "gbv", "kseq")
"""Rules of many laws or branches, which are otherwise proved only on trees of up to four nodes."""

MARGIN = 1 / 4
"""Largest share of the error allowed for rounding that our own rules may use."""

QUICK = ("block",)
"""Rules always proved on larger trees; `make prove` proves all rules on all trees of six nodes."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.slow] * (str(rule) in MANY)) for rule in LOSSLESS],
    ids=str,
)
def test_lossless_on_the_default_trees(rule):
    proof = assert_lossless(rule)
    print(f"{rule}: {proof.cases} cases, {proof.runs} runs, error {proof.largest_error:.2g}")
    assert proof.cases >= 200
    assert proof.runs >= proof.cases
    assert proof.largest_error < 1e-14
    assert proof.largest_share < MARGIN


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", MANY)
def test_lossless_on_all_trees_up_to_four_nodes(name):
    shapes = [shape for size in range(1, 5) for shape in plane_trees(size)]
    proof = assert_lossless(verify.RULES[name], shapes=shapes, tables=1)
    assert proof.cases > 0
    assert proof.runs >= proof.cases
    assert proof.largest_share < MARGIN


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=[pytest.mark.slow] * (str(rule) not in QUICK)) for rule in LOSSLESS],
    ids=str,
)
def test_lossless_on_some_larger_trees(rule):
    assert assert_lossless(rule, shapes=BIG, tables=1, seed=7).runs > 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_without_any_error_in_exact_arithmetic(rule):
    shapes = [shape for size in (2, 3) for shape in plane_trees(size)]
    proof = assert_lossless(rule, shapes=shapes, tables=1, exact=True)
    assert proof.cases > 0
    assert proof.largest_error == 0


SMALL = {
    "hardly different": ([0.4 + 1e-8, 0.35 - 1e-8, 0.25], [0.4, 0.35, 0.25]),
    "hardly overlapping": ([1 - 2e-8, 1e-8, 1e-8], [1e-8, 1 - 2e-8, 1e-8]),
    "a draft that is nearly sure": ([0.3, 0.4, 0.3], [1e-8, 1 - 2e-8, 1e-8]),
    "a target that is nearly sure": ([1 - 2e-8, 1e-8, 1e-8], [0.4, 0.35, 0.25]),
    "hardly outside the draft's support": ([0.4, 0.6 - 1e-8, 1e-8], [0.4, 0.6, 0.0]),
    "hardly different, sure": ([1 - 3e-9, 1e-9, 2e-9], [1 - 3e-8, 2e-8, 1e-8]),
}
"""Target and draft rows with masses, or differences, far below 1e-6."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rows", SMALL)
@pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if not rule.one_hot], ids=str)
def test_no_mass_is_too_small_to_count(rule, rows):
    """A residual of 1e-8 counts: a rule that drops it draws from the whole row, with an error of 1e-8."""
    logits = torch.tensor(SMALL[rows], dtype=torch.float64).log().clamp_min(-1e4)
    target, draft = (TabularModel(lambda context, row=row: row, 3) for row in logits)
    shapes = (TreeShape.chain(2), TreeShape.expansion([2]))
    cases = [(s, law) for s in shapes for law in rule.laws if covers(rule, s, law, 3)]
    assert cases
    for shape, law in cases:
        found = step_law(rule, shape, law, target=target, draft=draft)
        right = target_law(target, (0,), shape.depth + 1, Sampling())
        assert float((found.probs - right).abs().max()) < 1e-13


def test_nothing_enumerated_is_no_proof():
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.chain, shapes=[TreeShape.kary(2, 2)])
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.rrs, shapes=[])


def test_the_other_child_of_a_nearly_sure_hub_counts():
    """The hub has all but 2e-8 of the draft; the token beside it is accepted as often as possible."""
    p, q = (torch.tensor(row, dtype=torch.float64) for row in SMALL["a draft that is nearly sure"])
    accepted = 0.0
    for weight, tokens in outcomes(lambda coins: coins.draw_many(q[None], 2, Law.HUB)[0].tolist()):
        tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, *tokens]), q[None], Law.HUB)
        found = outcomes(lambda coins, t=tree: verify.spechub(t, p.expand(3, -1), coins))
        accepted += weight * sum(chance for chance, verdict in found if verdict.accepted)
    assert accepted == pytest.approx(verify.optimal_acceptance(p, q, 2, Law.HUB), abs=1e-12)
    assert accepted > 0.8


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", [verify.gbv, verify.traversal], ids=str)
def test_paths_of_three_levels(rule):
    """The mass below the selected prefix accumulates over levels, which shows from the third on."""
    proof = assert_lossless(rule, shapes=[TreeShape.independent_chains(2, 3)], vocab=2, tables=3)
    assert proof.cases >= 18
