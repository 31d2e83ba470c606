"""The interval form: by hand, against walks to the root, and renumbered depth first."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import InvalidInput, dense_mask, topology
from attention_masks.intervals import depth_first, intervals
from attention_masks.testing import visible_by_walk

TREE = [-1, 0, 0, 1, 2, 1]


@st.composite
def parent_arrays(draw):
    draws = draw(st.lists(st.integers(0, 10**6), max_size=20))
    return [-1, *(value % (i + 1) for i, value in enumerate(draws))]


windows = st.none() | st.integers(1, 20)


def test_by_hand():
    form = intervals(topology(TREE))
    assert form.pre.tolist() == [0, 1, 4, 2, 5, 3]
    assert form.end.tolist() == [6, 4, 6, 3, 6, 4]
    assert {x.dtype for x in (form.pre, form.end, form.depth)} == {torch.int32}
    rows = torch.tensor([[5], [4]])
    keys = torch.tensor([0, 1, 2, 4, 5])
    assert form.visible(rows, keys).int().tolist() == [[1, 1, 0, 0, 1], [1, 0, 1, 1, 0]]
    assert form.visible(rows, keys, window=2).int().tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 1, 0]]


@settings(max_examples=50)
@given(parent_arrays(), windows)
def test_equal_to_a_walk_to_the_root(parents, window):
    form = intervals(topology(parents))
    walked = visible_by_walk(parents, 0, window=window)
    assert torch.equal(form.dense(window), walked)
    pairwise = [
        [bool(form.visible(torch.tensor(i), torch.tensor(j), window)) for j in range(len(parents))]
        for i in range(min(3, len(parents)))
    ]
    assert pairwise == walked[:3].tolist()


@settings(max_examples=50)
@given(parent_arrays(), windows)
def test_depth_first_keeps_the_tree_and_makes_pre_the_identity(parents, window):
    tree = topology(parents)
    renumbered, order = depth_first(tree)
    assert renumbered.pre.tolist() == list(range(tree.size)) == renumbered.order.tolist()
    assert sorted(order.tolist()) == list(range(tree.size))
    # The mask is the same with rows and columns gathered, and gathering with `pre` restores it.
    mask = dense_mask(tree, 0, window=window)
    moved = dense_mask(renumbered, 0, window=window)
    assert torch.equal(moved, mask[order][:, order])
    assert torch.equal(moved[tree.pre][:, tree.pre], mask)
    # Siblings keep their order.
    for parent in range(tree.size):
        children = [node for node in order.tolist() if parents[node] == parent]
        assert children == sorted(children)
    # No row sees a key after its own rank, so tiles there can be skipped.
    assert not moved.triu(1).any()
    unchanged, identity = depth_first(renumbered)
    assert (unchanged, identity.tolist()) == (renumbered, list(range(tree.size)))


def test_made_on_the_device_of_the_topology():
    renumbered, order = depth_first(topology(TREE))
    assert renumbered.device == order.device == torch.device("cpu")
    form = intervals(topology(TREE).to("meta"))
    assert form.dense(window=2).device.type == "meta"


def test_a_window_that_does_not_fit_is_refused():
    form = intervals(topology(TREE))
    for call in (form.dense, lambda window: form.visible(form.pre, form.pre, window)):
        with pytest.raises(InvalidInput, match="window = 0, but a row sees at least itself"):
            call(0)
    with pytest.raises(InvalidInput, match=r"window = 1\.5, but it must be a plain integer"):
        inspect.unwrap(type(form).visible)(form, form.pre, form.pre, 1.5)
