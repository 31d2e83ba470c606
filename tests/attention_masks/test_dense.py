"""Dense masks: by hand, against walks to the root, and against transformers' sliding window."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_masks import InvalidInput, additive_mask, dense_mask, topology
from attention_masks.testing import visible_by_walk

TREE = [-1, 0, 0, 1, 2, 1]


@st.composite
def cases(draw):
    """A parent array, a prefix length, some of the nodes in any order, a window."""
    draws = draw(st.lists(st.integers(0, 10**6), max_size=15))
    parents = [-1, *(value % (i + 1) for i, value in enumerate(draws))]
    rows = draw(st.none() | st.lists(st.integers(0, len(draws)), min_size=1, max_size=8))
    return parents, draw(st.integers(0, 9)), rows, draw(st.none() | st.integers(1, 20))


def test_prefix_and_tree_by_hand():
    assert dense_mask(topology(TREE), 2).int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 0, 1, 0, 1, 0],
        [1, 1, 1, 1, 0, 0, 0, 1],
    ]


def test_a_window_by_hand():
    # Positions: prefix 0 1, root 2, level one 3, level two 4. Each row sees three positions.
    assert dense_mask(topology(TREE), 2, window=3).int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 1, 0, 0],
        [0, 0, 1, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 0, 0, 1],
    ]
    # A window of two is over positions, not over slots: it hides the root from level two.
    assert dense_mask(topology(TREE), 1, rows=[5, 1], window=2).int().tolist() == [
        [0, 0, 1, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 0, 0],
    ]
    assert torch.equal(dense_mask(topology(TREE), 3, window=2**40), dense_mask(topology(TREE), 3))
    assert dense_mask(topology(TREE), 3, window=1).int().sum(1).tolist() == [1] * 6


@given(cases())
def test_equal_to_a_walk_to_the_root(case):
    parents, prefix_len, rows, window = case
    tree = topology(parents)
    mask = dense_mask(tree, prefix_len, rows=rows, window=window)
    assert torch.equal(mask, visible_by_walk(parents, prefix_len, rows=rows, window=window))
    additive = additive_mask(tree, prefix_len, rows=rows, window=window)
    assert torch.equal(additive == 0, mask)
    assert additive[~mask].eq(torch.finfo(torch.float32).min).all()


@pytest.mark.parametrize("window", [1, 3, 8, 50])
def test_windows_are_those_of_transformers(window):
    from transformers.masking_utils import sliding_window_overlay

    inside = sliding_window_overlay(window)
    chain = dense_mask(topology(range(-1, 6)), 5, window=window)
    expected = [
        [key <= row and inside(0, 0, row, key) for key in range(12)] for row in range(5, 12)
    ]
    assert chain.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_masks_hold_zero_and_the_lowest_finite_number(dtype):
    mask = additive_mask(topology([-1, 0, 0]), 1, dtype=dtype)
    low = torch.finfo(dtype).min
    assert mask.dtype == dtype
    assert mask.tolist() == [[0, 0, low, low], [0, 0, 0, low], [0, 0, low, 0]]


def test_rows_may_be_any_sequence_of_nodes():
    tree = topology(TREE)
    full = dense_mask(tree, 3)
    for rows in (range(3, 6), [3, 4, 5], (5, 3), [2, 2], range(4, 0, -2), [0]):
        assert torch.equal(dense_mask(tree, 3, rows=rows), full[list(rows)])


def test_made_on_the_device_of_the_topology():
    assert dense_mask(topology(TREE).to("meta"), 3, window=2).device.type == "meta"
    assert additive_mask(topology(TREE).to("meta"), 3, rows=[1, 4]).device.type == "meta"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prefix_len": -1}, "prefix_len = -1, but it counts cached keys: it must be at least 0"),
        ({"prefix_len": 1.5}, r"prefix_len = 1\.5, but it must be a plain integer"),
        (
            {"window": 0},
            "window = 0, but a row sees at least itself: it must be at least 1, or None",
        ),
        ({"window": 2.0}, r"window = 2\.0, but it must be a plain integer"),
        ({"rows": []}, "rows is empty: name at least one node, or None for all of them"),
        ({"rows": range(2, 2)}, "rows is empty"),
        ({"rows": [0, 6]}, r"rows\[1\] = 6, but the tree has 6 nodes: rows must be in 0\.\.5"),
        ({"rows": range(4, 8)}, r"rows\[2\] = 6, but the tree has 6 nodes"),
        ({"rows": [-1]}, r"rows\[0\] = -1, but the tree has 6 nodes"),
        ({"rows": range(-2, 2)}, r"rows\[0\] = -2, but the tree has 6 nodes"),
        ({"rows": ["a"]}, r"rows\[0\] = 'a', but it must be a plain integer"),
    ],
)
def test_invalid_arguments_are_refused(kwargs, message):
    kwargs = {"prefix_len": 2, **kwargs}
    with pytest.raises(ValueError, match=message) as caught:
        inspect.unwrap(dense_mask)(topology(TREE), **kwargs)
    assert isinstance(caught.value, InvalidInput)
