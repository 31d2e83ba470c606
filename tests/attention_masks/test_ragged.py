"""Masks of several trees: each sequence and tree against walks to the root, padding by hand."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import InvalidInput, dense_mask, topology
from attention_masks.ragged import forest, ragged_additive_mask, ragged_mask
from attention_masks.testing import assert_accurate, visible_by_walk

TREE = [-1, 0, 0, 1, 2, 1]


@st.composite
def sequences(draw):
    """A parent array, a prefix length, some of the nodes in any order."""
    draws = draw(st.lists(st.integers(0, 10**6), max_size=11))
    parents = [-1, *(value % (i + 1) for i, value in enumerate(draws))]
    rows = draw(st.none() | st.lists(st.integers(0, len(draws)), min_size=1, max_size=8))
    return parents, draw(st.integers(0, 9)), rows


batches = st.lists(sequences(), min_size=1, max_size=4)
windows = st.none() | st.integers(1, 20)


@settings(max_examples=50)
@given(batches, windows)
def test_each_sequence_equals_its_walk_and_the_rest_is_hidden(batch, window):
    all_parents, prefix_lens, rows = zip(*batch, strict=True)
    trees = [topology(parents) for parents in all_parents]
    mask = ragged_mask(trees, prefix_lens, rows=rows, window=window)
    walks = [visible_by_walk(p, n, rows=r, window=window) for p, n, r in batch]
    assert mask.shape == (
        len(batch), max(w.shape[0] for w in walks), max(w.shape[1] for w in walks)
    )  # fmt: skip
    for line, walked in zip(mask, walks, strict=True):
        assert torch.equal(line[: walked.shape[0], : walked.shape[1]], walked)
        assert line.sum() == walked.sum()
    additive = ragged_additive_mask(trees, prefix_lens, rows=rows, window=window)
    low = torch.finfo(torch.float32).min
    for line, walked in zip(additive, walks, strict=True):
        own = line[: walked.shape[0]]
        assert torch.equal(own[:, : walked.shape[1]] == 0, walked)
        assert (
            own[~torch.nn.functional.pad(walked, (0, line.shape[1] - walked.shape[1]))]
            .eq(low)
            .all()
        )
        assert line[walked.shape[0] :].eq(0).all()


@settings(max_examples=50)
@given(batches, st.integers(0, 9), windows)
def test_trees_of_a_forest_see_the_prefix_and_themselves(batch, prefix_len, window):
    all_parents = [parents for parents, _, _ in batch]
    found = forest([topology(parents) for parents in all_parents], prefix_len, window=window)
    assert found.offsets[0] == 0
    unexplained = found.mask.clone()
    for parents, start, stop in zip(all_parents, found.offsets, found.offsets[1:], strict=False):
        walked = visible_by_walk(parents, prefix_len, window=window)
        keys = [*range(prefix_len), *range(prefix_len + start, prefix_len + stop)]
        assert torch.equal(found.mask[start:stop][:, keys], walked)
        unexplained[start:stop, keys] = False
    assert found.mask.shape == (found.offsets[-1], prefix_len + found.offsets[-1])
    assert not unexplained.any()


def test_padding_by_hand():
    trees = [topology([-1, 0, 0]), topology([-1])]
    assert ragged_mask(trees, [1, 2], rows=[[2, 1], None], window=2).int().tolist() == [
        [[0, 1, 0, 1], [0, 1, 1, 0]],
        [[0, 1, 1, 0], [0, 0, 0, 0]],
    ]
    low = torch.finfo(torch.float16).min
    additive = ragged_additive_mask(trees, [1, 2], rows=[[2], None], dtype=torch.float16)
    assert additive.tolist() == [[[0, 0, low, 0]], [[0, 0, 0, low]]]
    additive = ragged_additive_mask(trees, [0, 0], dtype=torch.float16)
    assert additive[1].tolist() == [[0, low, low], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_a_padded_batch_is_finite_and_equals_that_of_each_sequence(dtype):
    trees = [topology(TREE), topology([-1]), topology([-1, 0, 1])]
    prefix_lens, window = [3, 9, 0], 4
    attend = torch.nn.functional.scaled_dot_product_attention
    bias = ragged_additive_mask(trees, prefix_lens, window=window, dtype=dtype)[:, None]
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 2, bias.shape[2], 8, generator=generator).to(dtype)
    k, v = torch.randn(2, 3, 2, bias.shape[3], 8, generator=generator).to(dtype)
    out = attend(q, k, v, attn_mask=bias)
    assert out.isfinite().all()
    for b, (tree, prefix_len) in enumerate(zip(trees, prefix_lens, strict=True)):
        mask = dense_mask(tree, prefix_len, window=window)
        own = slice(b, b + 1)
        assert_accurate(
            out[own, :, : mask.shape[0]], q[own, :, : mask.shape[0]], k[own], v[own], mask
        )


def test_made_on_the_device_of_the_trees():
    tree = topology(TREE).to("meta")
    assert ragged_mask([tree], [2], window=2).device.type == "meta"
    assert ragged_additive_mask([tree], [2]).device.type == "meta"
    assert forest([tree, tree], 2).mask.device.type == "meta"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: ragged_mask([], []), "trees is empty: give at least one"),
        (
            lambda t: ragged_mask([t], []),
            "prefix_lens has 0 entries: it must have one for each tree",
        ),
        (lambda t: ragged_mask([t], [1], rows=[[0], [1]]), "1 trees, but rows has 2 entries"),
        (
            lambda t: ragged_mask([t, t], [1, 1], rows=[None, [0, 6]]),
            r"sequence 1: rows\[1\] = 6, but the tree has 6 nodes: rows must be in 0\.\.5",
        ),
        (lambda t: ragged_mask([t, t], [-1, 1]), "sequence 0: prefix_len = -1, but it counts"),
        (lambda t: ragged_additive_mask([t], [1], window=0), "window = 0, but a row sees"),
        (
            lambda t: ragged_mask([t, t.to("meta")], [1, 1]),
            r"trees\[1\] is on meta and trees\[0\] on cpu, but they must be on one device",
        ),
        (lambda t: forest([], 1), "trees is empty"),
        (lambda t: forest([t], -1), "prefix_len = -1, but it counts cached keys"),
        (lambda t: forest([t], 1, window=0), "window = 0, but a row sees"),
        (lambda t: forest([t, t.to("meta")], 1), r"trees\[1\] is on meta"),
        (lambda t: inspect.unwrap(forest)([t], 1.5), r"prefix_len = 1\.5, but it must be a plain"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(topology(TREE))
