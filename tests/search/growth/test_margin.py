"""A chain that branches where the draft hesitates."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.search.growth import Margin


def reference(draft, growth):
    """Level by level: expand what would be kept now, by all nodes so far."""
    close, level = {(): 1.0}, [()]
    kept = [()]
    for _ in range(growth.depth):
        for path in level:
            children = draft.best_children(path, growth.branching)
            first = float(draft.probs(path)[children[0][-1]])
            for child in children:
                share = float(draft.probs(path)[child[-1]])
                if child == children[0] or math.log(first / share) <= growth.gap:
                    close[child] = close[path] * share
        kept = sorted(close, key=lambda path: -close[path])[: growth.size]
        level = [path for path in kept if len(path) == len(level[0]) + 1]
        if not level:
            break
    return set(kept) - {()}


@settings(max_examples=40)
@given(
    st.integers(0, 999), st.integers(2, 12), st.integers(1, 4), st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 1.0, 50.0]),
)  # fmt: skip
def test_it_branches_where_the_gap_is_small(growing, seed, size, depth, branching, gap):
    draft, growth = growing.Draft(seed, vocab=4), Margin(size, depth, branching, gap)
    assert set(draft.paths(growth)) == reference(draft, growth)
    assert len(draft.passes) <= depth


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_with_one_child_it_is_a_chain(growing, gap):
    paths = growing.Draft(1).paths(Margin(9, 4, 1, gap))
    assert [len(path) for path in paths] == [1, 2, 3, 4]
