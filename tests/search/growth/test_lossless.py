"""Drafting with every policy keeps the target's law: exact enumeration, and wrong variants that fail it."""

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TreeShape, plugins, verify
from treespec.draft import ModelDrafter
from treespec.search import DDTree, Top2Gap
from treespec.search.growth import (
    CostAware,
    DySpec,
    Eagle2,
    EqualGrowth,
    EqualShares,
    Margin,
    OptTree,
    SharedBudget,
    SpecExec,
)
from treespec.testing import NotLossless, assert_lossless

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def half(probs):
    return 0.5 * probs


DRAWN = [DySpec(4, 2), DySpec(5, 2, half)]
WARM = [Sampling(), Sampling(temperature=0.7, top_p=0.9)]


@pytest.fixture
def chosen(growing):
    times = growing.Times(1.0, 0.1, draft=0.05)
    return [
        Eagle2(2, 2, 4),
        Eagle2(3, 2, 5, half),
        OptTree(4, 0.1, 2, branching=3),
        SpecExec(4, 2, 2),
        SpecExec(5, 3, 2, half),
        EqualGrowth(2, 2, 4),
        EqualGrowth(2, 2, latency=times),
        SharedBudget(4, 2, 3),
        EqualShares(4, 2, 3),
        Margin(4, 2),
        Margin(5, 2, 3, 0.5, half),
        CostAware(times, 5, 2, 2),
        CostAware(times, 5, 2, 3, calibration=half),
    ]


def test_every_policy_is_here(chosen):
    built_in = {part.make for part in plugins.parts("growth").values() if not part.plugged}
    assert {type(growth) for growth in [*chosen, *DRAWN]} == built_in - {DDTree, Top2Gap}
    for growth in [*chosen, *DRAWN]:
        assert growth.laws == {Law.WITHOUT_REPLACEMENT if growth in DRAWN else Law.DETERMINISTIC}


@pytest.mark.parametrize("rule", [verify.naive, verify.onehot, verify.greedy], ids=str)
def test_policies_that_choose(chosen, rule):
    for growth in chosen:
        samplings = None if rule is verify.greedy else WARM
        proof = assert_lossless(rule, growths=[growth], tables=2, samplings=samplings)
        assert proof.cases >= 15


@pytest.mark.parametrize("rule", [verify.rrsw, verify.greedy], ids=str)
def test_dyspec(rule):
    samplings = None if rule is verify.greedy else WARM
    proof = assert_lossless(rule, growths=DRAWN, tables=2, samplings=samplings)
    assert proof.cases >= 30


def test_dyspec_without_any_rounding():
    assert assert_lossless(verify.rrsw, growths=[DySpec(4, 2)], tables=1, exact=True).cases > 15


@pytest.mark.slow
def test_larger_trees():
    for growth in (DySpec(6, 3), DySpec(7, 3)):
        assert_lossless(verify.rrsw, growths=[growth], tables=3, vocab=3)
    assert_lossless(verify.rrsw, growths=[DySpec(5, 2)], tables=2, vocab=4)


class Resorted(ModelDrafter):
    """Sorts siblings by their probability, as if the order did not matter."""

    def propose(self, coins):
        tree = super().propose(coins)
        parents, tokens, rows, queue = [-1], [tree.token_ids[0]], [], [(0, 0)]
        while queue:
            old, new = queue.pop(0)
            children = tree.shape.children[old]
            if not children:
                continue
            probs = tree.draft_probs_of(old)
            rows.append(probs)
            for child in sorted(children, key=lambda c: -float(probs[tree.token_ids[c]])):
                queue.append((child, len(parents)))
                parents.append(new)
                tokens.append(tree.token_ids[child])
        probs = torch.stack(rows) if rows else None
        return TokenTree(TreeShape(tuple(parents)), torch.tensor(tokens), probs, self.law)


class Unrefused(ModelDrafter):
    """Lets a growth choose among drawn children."""

    def _checked_nodes(self, nodes, shape):
        return sorted(nodes)


class KeepsTheLikelier:
    """Draws two children and keeps the more probable one."""

    max_depth = 1

    def next(self, shape, probs):
        return [(0, 2)] if shape.size == 1 else ()

    def keep(self, shape, probs):
        return [0, 1 + int(probs()[1:].argmax())]


def test_sorted_draws_are_caught():
    with pytest.raises(NotLossless, match=r"rrsw is not lossless[\s\S]*DySpec\(size=4"):
        assert_lossless(verify.rrsw, growths=[DySpec(4, 2)], tables=1, draft_with=Resorted)


@pytest.mark.parametrize(
    ("law", "rule"), [(Law.WITHOUT_REPLACEMENT, verify.rrsw), (Law.IID, verify.rrs)], ids=str
)
def test_a_sampled_tree_pruned_by_token_is_caught(law, rule):
    growths = [KeepsTheLikelier()]
    with pytest.raises(NotLossless, match="KeepsTheLikelier"):
        assert_lossless(rule, laws=[law], growths=growths, tables=1, draft_with=Unrefused)
    with pytest.raises(ValueError, match="'KeepsTheLikelier' keeps 2 of 3 nodes"):
        assert_lossless(rule, laws=[law], growths=growths, tables=1)


def test_naive_sampling_does_not_mind_how_children_were_chosen():
    """`naive` requires nothing of the draft, so it would tolerate what other rules forbid."""
    proof = assert_lossless(
        verify.naive, laws=[Law.IID], growths=[KeepsTheLikelier()], tables=1, draft_with=Unrefused
    )
    assert proof.cases > 15


@pytest.mark.parametrize(
    "wrong",
    [lambda row, elder, law: row, lambda row, elder, law: row.scatter(-1, elder[:, -1:], 0.0)],
    ids=["from the unmodified row", "only the last one removed"],
)
def test_draws_that_forget_elder_siblings_are_caught(monkeypatch, wrong):
    monkeypatch.setattr("treespec.draft.drawn.next_child", wrong)
    with pytest.raises(NotLossless, match="rrsw"):
        assert_lossless(verify.rrsw, growths=[DySpec(4, 1)], tables=1, vocab=4)


def test_where_to_draw_next_may_depend_on_any_token(growing):
    """Where children are drawn may depend on earlier draws; which of them are kept may not."""

    class ByToken:
        laws, max_depth = frozenset({Law.WITHOUT_REPLACEMENT}), 2

        def next(self, shape, probs):
            if shape.size == 1:
                return [(0, 1)]
            return [(0 if probs()[1] < 0.4 else 1, 1)] if shape.size < 4 else ()

    assert assert_lossless(verify.rrsw, growths=[ByToken()], tables=2).cases > 15
