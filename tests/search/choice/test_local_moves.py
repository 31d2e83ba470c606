"""Local moves between trees, and the trees at which they end."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search import expected_tokens
from treespec.search.choice.local_moves import (
    Bounds,
    climb,
    neighbours,
    paths_of,
    shape_of_paths,
)
from treespec.testing import plane_trees

BOUNDS = Bounds(size=7, depth=4, branching=3)
EVERY = [
    tree
    for size in range(2, 8)
    for tree in plane_trees(size)
    if BOUNDS.allow(tree) and tree.depth <= 4 and max(map(len, tree.children)) <= 3
]


def no_ends(shape):
    return np.zeros((shape.size, 4), dtype=np.int64)


@given(st.sampled_from(EVERY))
def test_neighbours_are_trees_within_bounds_each_once(shape):
    near = neighbours(shape, no_ends(shape), BOUNDS)
    assert len(set(near)) == len(near)
    assert shape not in near
    for tree in near:
        assert tree.size <= BOUNDS.size
        assert tree.depth <= BOUNDS.depth
        assert max(map(len, tree.children)) <= BOUNDS.branching
        assert tree == tree.breadth_first()


def test_a_node_is_added_removed_and_moved():
    shape = TreeShape.expansion([2, 1])
    near = neighbours(shape, no_ends(shape), BOUNDS)
    paths = set(paths_of(shape))
    for change in (
        paths | {(2,)},
        paths | {(0, 1)},
        paths | {(1, 0, 0), (1, 0, 0, 0)},
        paths - {(1, 0)},
        (paths - {(1, 0)}) | {(0, 0, 0)},
        paths | {(0, 1), (1, 1)},  # a level widened
        paths | {(0, 0, 0), (1, 0, 0)},  # a level more
        {(), (0,), (1,)},  # all below a level cut
    ):
        assert shape_of_paths(change) in near


def test_two_nodes_are_traded_for_one_and_one_for_two():
    """Neither half of the move leads to a better tree by itself."""
    shape = TreeShape((-1, 0, 0, 0, 1, 1, 2, 3))
    paths, bounds = set(paths_of(shape)), Bounds(size=9, depth=4, branching=3)
    near = neighbours(shape, no_ends(shape), bounds)
    for change in (
        (paths - {(1, 0), (2, 0)}) | {(0, 2)},
        (paths - {(2, 0)}) | {(0, 2), (1, 1)},
    ):
        assert shape_of_paths(change) in near


@settings(max_examples=40)
@given(
    st.lists(st.floats(0.02, 1), min_size=3, max_size=3),
    st.floats(0.2, 0.95),
    st.floats(0, 0.3),
    st.floats(0, 0.4),
    st.sampled_from(EVERY),
)
def test_moves_lead_to_the_best_of_all_trees(weights, total, per_node, per_level, start):
    """Under rates, the best tree is reached from any start."""
    rates = -np.sort(-np.array(weights)) * total / sum(weights)

    def speeds(shapes):
        return np.array(
            [
                expected_tokens(t, rates) / (1 + per_node * t.size + per_level * t.depth)
                for t in shapes
            ]
        )

    def ends(shape):
        """How often steps would end there, by the rank of the next child."""
        gain = np.zeros((shape.size, 4))
        for node, path in enumerate(paths_of(shape)):
            gain[node, :3] = np.prod(rates[list(path)]) * rates
        return gain

    found = climb(start, speeds, ends, BOUNDS)
    assert speeds([found])[0] >= 0.995 * speeds(EVERY).max()


def test_only_sizes_that_are_asked_for_are_taken():
    bounds = Bounds(size=5, depth=4, branching=3, sizes=frozenset([5]))
    rates = [0.5, 0.3, 0.1]

    def speeds(shapes):
        assert all(shape.size == 5 for shape in shapes)
        return np.array([expected_tokens(shape, rates) for shape in shapes])

    start = TreeShape((-1, 0, 0, 0, 1))
    found = climb(start, speeds, no_ends, bounds)
    assert speeds([found])[0] > speeds([start])[0]
