"""Growths that draft more than is verified: what is kept, what is refused, and the cache."""

from itertools import repeat

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter, StaticGrowth
from treespec.errors import InvalidTree
from treespec.protocols import Growth, PruningGrowth
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

TABLE = random_table(6, 1)
TWO_LEVELS = [(0, 3)], [(1, 2), (3, 2)]  # nodes 1 2 3, then 4 5 below 1 and 6 7 below 3


def drafter_of(growth, law=Law.DETERMINISTIC, sampling=None):
    drafter = ModelDrafter(TabularModel(TABLE, 6), growth, law, sampling or Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    return drafter


def propose(growth, law=Law.DETERMINISTIC, seed=0):
    return drafter_of(growth, law).propose(TorchCoins(seed))


def test_kept_nodes_are_renumbered_in_the_order_of_creation(growths):
    whole = propose(growths.Scripted(*TWO_LEVELS))
    tree = propose(growths.Keeping(*TWO_LEVELS, keep=[7, 0, 3, 5, 1]))
    assert tree.shape.parents == (-1, 0, 0, 1, 2)
    assert tree.token_ids == tuple(whole.token_ids[node] for node in (0, 1, 3, 5, 7))
    assert tree.draft_probs is None


def test_siblings_may_be_any_subset(growths):
    whole = propose(growths.Scripted(*TWO_LEVELS))
    tree = propose(growths.Keeping(*TWO_LEVELS, keep=[0, 2, 3, 6]))
    assert tree.token_ids == tuple(whole.token_ids[node] for node in (0, 2, 3, 6))
    assert tree.shape.parents == (-1, 0, 0, 2)


def test_the_root_alone_is_plain_decoding(growths):
    assert propose(growths.Keeping(*TWO_LEVELS, keep=[0])).shape == TreeShape.chain(0)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ([1, 2], "'Keeping' does not keep the root"),
        ([0, 4], "'Keeping' keeps node 4 but not its parent 1"),
        ([0, 8], r"'Keeping' keeps nodes that do not exist: \[0, 8\]"),
        ([0, -1], "nodes that do not exist"),
        (repeat(0), "'Keeping' keeps more than the 8 nodes"),
    ],
)
def test_what_is_no_tree_is_refused(growths, keep, message):
    with pytest.raises(InvalidTree, match=message):
        propose(growths.Keeping(*TWO_LEVELS, keep=keep))


@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT, Law.TOP_THEN_SAMPLE])
def test_choosing_among_drawn_children_is_refused(growths, law):
    with pytest.raises(InvalidTree, match=f"'Keeping' keeps 7 of 8 nodes.*of law {law}"):
        propose(growths.Keeping(*TWO_LEVELS, keep=range(7)), law)
    tree = propose(growths.Keeping(*TWO_LEVELS, keep=range(8)), law)
    assert tree.shape.size == len(tree.shape.internal) + 5 == 8
    assert len(tree.draft_probs) == 3


def test_a_growth_may_state_its_laws(growths):
    class Stated(growths.Scripted):
        laws = frozenset({Law.IID, Law.DETERMINISTIC})

    for law in Stated.laws:
        assert propose(Stated([(0, 1)]), law).shape.size == 2
    with pytest.raises(
        InvalidTree, match=r"'Stated' is not made for children of law hub.*deterministic, iid only"
    ):
        drafter_of(Stated([(0, 1)]), Law.HUB)


def test_only_a_growth_that_chooses_is_asked(growths):
    assert isinstance(growths.Keeping(keep=[]), PruningGrowth)
    for growth in (growths.Scripted(), StaticGrowth(TreeShape.chain(2))):
        assert isinstance(growth, Growth)
        assert not isinstance(growth, PruningGrowth)


def test_a_static_shape_never_asks_for_probabilities(monkeypatch):
    monkeypatch.setattr("treespec.draft.drawn.DrawnChildren.node_probs", pytest.fail)
    assert propose(TreeShape.kary(2, 3)).shape == TreeShape.kary(2, 3)


def test_the_cache_behind_pruned_trees_stays_the_text(growths):
    """Accepted nodes may have been run or not, above pruned nodes or not; other rows are dropped."""
    ends = set()
    for seed in range(16):
        sampling = Sampling(float(seed % 2))
        target = TabularModel(lambda c: TABLE(c) + 0.3 * random_table(6, 7)(c), 6)
        drafter = growths.Watched(
            TabularModel(TABLE, 6), growths.RandomPruned(seed), Law.DETERMINISTIC, sampling
        )
        rule = verify.greedy if sampling.greedy else verify.naive
        text = []
        for step in decode(
            ModelTarget(target), drafter, rule, torch.tensor([0, 1]), sampling=sampling,
            coins=TorchCoins(seed), max_new_tokens=12,
        ):  # fmt: skip
            text += step.tokens
            for children in step.tree.shape.children:
                tokens = [step.tree.token_ids[child] for child in children]
                assert len(set(tokens)) == len(tokens)
        ends.update((ran, len(path) > 1, len(path) < rows) for ran, path, rows in drafter.ends)
        if sampling.greedy:
            context = (0, 1)
            for token in text:
                assert token == int(target.row(context).argmax())
                context += (token,)
    assert {(True, True, True), (False, True, True), (False, True, False)} <= ends
