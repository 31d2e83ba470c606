"""Fixed shapes drafted by levels against the general path, and the number of reads from the device."""

from typing import Any

import pytest
import torch
from far_away import FarAway
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, Sampling, TorchCoins, TreeShape
from treespec.draft import ModelDrafter, StaticGrowth
from treespec.draft.levels import levels_of
from treespec.errors import NonFiniteLogits
from treespec.step import Scores, Step, Verdict
from treespec.testing import TabularModel, random_table

TABLE = random_table(6, 1)


class Told:
    """A growth of a fixed shape that does not reveal the shape."""

    def __init__(self, shape: TreeShape) -> None:
        self._growth = StaticGrowth(shape)
        self.max_depth = shape.depth

    def next(self, shape, probs):
        return self._growth.next(shape, probs)


def test_a_level_names_the_children_that_are_run_next_if_they_are_not_all():
    def run_next(shape):
        return [level.run_next for level in levels_of(shape, torch.device("cpu")).levels]

    assert run_next(TreeShape.expansion([2, 1])) == [None, None]
    first, last = run_next(TreeShape.from_parents([-1, 0, 0, 2]))
    assert first.tolist() == [1]
    assert last is None


@st.composite
def shapes(draw):
    size = draw(st.integers(1, 14))
    return TreeShape.from_parents([-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))])


def steps(growth, law, sampling, seed):
    """Consecutive trees; of each, the path to the last leaf is accepted, with another bonus."""
    drafter, coins, trees = (
        ModelDrafter(TabularModel(TABLE, 6), growth, law, sampling),
        TorchCoins(seed),
        [],
    )
    drafter.prefill(torch.tensor([0, 1]))
    for bonus in (2, 5, 3):
        tree = drafter.propose(coins)
        path = tree.shape.path(tree.shape.leaves[-1])
        trees.append((tree, drafter.model.length))
        verdict = Verdict((0, *(node for node in path if node)), bonus)
        drafter.commit(Step(tree, verdict, Scores(torch.zeros(tree.shape.size, 6)), ()))
    return trees, coins.uniform()


@given(
    shapes(),
    st.sampled_from([Law.IID, Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT, Law.TOP_THEN_SAMPLE]),
    st.sampled_from([Sampling(), Sampling(0.7, top_p=0.8), Sampling(0.0)]),
    st.integers(0, 3),
)
def test_trees_rows_and_coins_are_those_of_a_growth(shape, law, sampling, seed):
    if max(map(len, shape.children)) > 6:
        return
    ours, rest = steps(shape, law, sampling, seed)
    theirs, their_rest = steps(Told(shape), law, sampling, seed)
    assert rest == their_rest
    for (tree, length), (other, other_length) in zip(ours, theirs, strict=True):
        assert tree.shape == other.shape
        assert tree.token_ids == other.token_ids
        assert length == other_length
        assert (tree.draft_probs is None) == (other.draft_probs is None)
        if tree.draft_probs is not None:
            assert torch.equal(tree.draft_probs, other.draft_probs)


@pytest.mark.parametrize("law", [Law.DETERMINISTIC, Law.IID, Law.WITHOUT_REPLACEMENT])
def test_a_device_is_read_once_however_deep_the_tree_is(law, without_shape_checks):
    reads = {}
    for depth in (2, 5):
        shape = TreeShape.expansion([3, 2, *[1] * depth])
        drafter = ModelDrafter(TabularModel(TABLE, 6), shape, law, Sampling())
        drafter.prefill(torch.tensor([0, 1]))
        coins = TorchCoins(0)
        coins.peek(100)
        inner = drafter.model.run
        watch = FarAway()

        def run(*arguments: Any, inner=inner, watch=watch) -> Scores:
            before = len(watch.reads)
            scores = inner(*arguments)
            del watch.reads[before:]  # the table of this model is on the host
            return scores

        drafter.model.run = run
        with watch:
            drafter.propose(coins)
        reads[depth] = watch.reads
    # One for numbers of the whole tree, and one that `TokenTree` makes of tokens that are on the CPU.
    assert reads == {2: ["tolist"] * 2, 5: ["tolist"] * 2}


@pytest.mark.parametrize("law", [Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_are_named_by_node(law, value):
    class Broken(TabularModel):
        def run(self, tokens, parents, first=0):
            logits = super().run(tokens, parents, first).logits.clone()
            if first == 1:
                logits[1, 3] = value
            return Scores(logits)

        def fresh(self):
            return Broken(TABLE, 6)

    drafter = ModelDrafter(Broken(TABLE, 6), TreeShape.expansion([3, 1, 1]), law, Sampling())
    drafter.prefill(torch.tensor([0, 1]))
    with pytest.raises(NonFiniteLogits, match="node 2"):
        drafter.propose(TorchCoins(0))
