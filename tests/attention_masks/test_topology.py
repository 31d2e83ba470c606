"""Depths, depth-first order, subtree ends and paths: by hand, and against walks of the tree."""

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_masks import NotATree, topology
from attention_masks.testing import visible_by_walk

parent_arrays = st.lists(st.integers(0, 10**6), max_size=24).map(
    lambda draws: [-1, *(draw % (i + 1) for i, draw in enumerate(draws))]
)


def depth_first(parents, node=0):
    """The nodes of a subtree in depth-first order, by recursion over children in index order."""
    order = [node]
    for child in range(len(parents)):
        if parents[child] == node:
            order += depth_first(parents, child)
    return order


def test_a_tree_by_hand():
    #       0
    #     /   \
    #    1     2
    #   / \    |
    #  3   5   4     (5 comes late: siblings are not consecutive)
    tree = topology([-1, 0, 0, 1, 2, 1])
    assert tree.size == 6
    assert tree.parents == (-1, 0, 0, 1, 2, 1)
    assert tree.depths == (0, 1, 1, 2, 2, 2)
    assert tree.depth.tolist() == [0, 1, 1, 2, 2, 2]
    assert tree.order.tolist() == [0, 1, 3, 5, 2, 4]
    assert tree.pre.tolist() == [0, 1, 4, 2, 5, 3]
    assert tree.end.tolist() == [6, 4, 6, 3, 6, 4]
    assert tree.paths() == [(0, 1, 3), (0, 1, 5), (0, 2, 4)]
    assert tree.ancestors.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]
    for name in ("depth", "order", "pre", "end"):
        values = getattr(tree, name)
        assert values.dtype == torch.int32
        assert values.is_contiguous()


def test_the_root_alone():
    tree = topology([-1])
    assert (tree.size, tree.depths, tree.paths()) == (1, (0,), [(0,)])
    assert (tree.order.tolist(), tree.pre.tolist(), tree.end.tolist()) == ([0], [0], [1])


@given(parent_arrays)
def test_order_and_ends_are_those_of_a_recursive_walk(parents):
    tree = topology(parents)
    order = depth_first(parents)
    assert tree.order.tolist() == order
    assert tree.pre.tolist() == [order.index(node) for node in range(tree.size)]
    descendants = [len(depth_first(parents, node)) for node in range(tree.size)]
    assert (tree.end - tree.pre).tolist() == descendants


@given(parent_arrays)
def test_ancestors_depths_and_paths_are_those_of_a_walk_to_the_root(parents):
    tree = topology(parents)
    walked = visible_by_walk(parents, 0)
    assert torch.equal(tree.ancestors, walked)
    assert tree.depth.tolist() == list(tree.depths) == (walked.sum(1) - 1).tolist()
    leaves = [node for node in depth_first(parents) if node not in parents]
    assert tree.paths() == [
        tuple(sorted(walked[leaf].nonzero()[:, 0].tolist(), key=tree.depths.__getitem__))
        for leaf in leaves
    ]


def test_a_long_chain_does_not_recurse():
    tree = topology(range(-1, 5000))
    assert tree.depths[-1] == 5000
    assert tree.end.unique().tolist() == [5001]


def test_equal_parents_share_one_topology():
    tree = topology([-1, 0, 1])
    assert topology((-1, 0, 1)) is tree
    assert inspect.unwrap(topology)((tree.depth - 1).numpy()) is tree  # integers of any kind
    copy = dataclasses.replace(tree)
    assert copy == tree
    assert hash(copy) == hash(tree)
    assert topology([-1, 0, 0]) != tree
    assert repr(tree) == "Topology(parents=(-1, 0, 1))"


def test_a_topology_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology([-1]).parents = (-1, 0)


def test_moved_once_to_each_device():
    tree = topology([-1, 0, 0])
    assert tree.to("cpu") is tree
    moved = tree.to("meta")
    assert moved.pre.device.type == moved.device.type == "meta"
    assert moved.end.dtype == torch.int32
    assert (moved.parents, moved.depths) == (tree.parents, tree.depths)
    assert moved != tree
    assert tree.to(torch.device("meta")) is moved
    assert moved.to("cpu") is tree


def test_made_in_inference_mode_it_still_serves_autograd():
    with torch.inference_mode():
        tree = topology([-1, 0, 1, 2, 0, 0, 3])
        mask = tree.ancestors
        moved = tree.to("meta")
    weights = torch.ones(7, requires_grad=True)
    (weights[tree.order] * mask).sum().backward()
    assert weights.grad is not None
    assert not moved.order.is_inference()


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], r"parents is empty, but a tree has at least its root: parents = \[-1\]"),
        ([0], r"parents\[0\] = 0, but node 0 is the root: it must be -1"),
        ([-1, 1], r"parents\[1\] = 1, but a parent comes before its child: it must be in 0\.\.0"),
        ([-1, 0, 5], r"parents\[2\] = 5, .* must be in 0\.\.1"),
        ([-1, 0, -1], r"parents\[2\] = -1, .* must be in 0\.\.1"),
        ([-1, 0.0], r"parents must be plain integers, got \[-1, 0\.0\]"),
        (3, "parents must be plain integers, got 3"),
        (
            [[0], [1], [0, 0]],
            r"paths of ranks.*pass `treespec\.TreeShape\.from_paths\(paths\)\.parents`",
        ),
        ([(0,), (0, 0)], "paths of ranks"),
        (SimpleNamespace(parents=(-1, 0)), "pass its `parents`"),
    ],
)
def test_invalid_parents_are_refused_with_index_and_value(parents, message):
    # Equal to [-1, 0.0] as a key: the result must not depend on what is cached.
    topology([-1, 0])
    with pytest.raises(NotATree, match=message) as caught:
        inspect.unwrap(topology)(parents)  # without type checks, as users call it
    assert isinstance(caught.value, ValueError)
