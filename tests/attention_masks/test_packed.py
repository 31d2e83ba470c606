"""Packed masks: by hand, against walks to the root, and as each engine's kernel reads them."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import InvalidInput, topology
from attention_masks.packed import flashinfer_mask, packed_rows, tensorrt_llm_mask, unpacked
from attention_masks.testing import visible_by_walk

TREE = [-1, 0, 0, 1, 2, 1]


@st.composite
def sequences(draw, max_nodes=80):
    """A parent array of up to `max_nodes` nodes, a prefix length, some of the nodes in any order."""
    draws = draw(st.lists(st.integers(0, 10**6), max_size=max_nodes - 1))
    parents = [-1, *(value % (i + 1) for i, value in enumerate(draws))]
    rows = draw(st.none() | st.lists(st.integers(0, len(draws)), min_size=1, max_size=8))
    return parents, draw(st.integers(0, 9)), rows


windows = st.none() | st.integers(1, 20)


def test_bits_by_hand():
    assert packed_rows(topology(TREE)).tolist() == [[1], [3], [5], [11], [21], [35]]
    assert packed_rows(topology(TREE), rows=[5, 1], window=2).tolist() == [[34], [3]]
    # The last row of a chain of 33 fills one word, sign bit included, and one bit of the next.
    chain = packed_rows(topology(range(-1, 32)))
    assert chain.dtype == torch.int32
    assert chain[[0, 30, 31, 32]].tolist() == [[1, 0], [2**31 - 1, 0], [-1, 0], [-1, 1]]


@settings(max_examples=50)
@given(sequences(), windows)
def test_rows_are_those_of_a_walk(sequence, window):
    parents, _, rows = sequence
    words = packed_rows(topology(parents), rows=rows, window=window)
    walked = visible_by_walk(parents, 0, rows=rows, window=window)
    assert torch.equal(unpacked(words, len(parents)), walked)
    # Bit by bit, as a kernel reads them, with nothing after the last node.
    for line, row in zip(words.tolist(), walked.tolist(), strict=True):
        number = sum((word & 0xFFFFFFFF) << 32 * i for i, word in enumerate(line))
        assert number == sum(1 << j for j, seen in enumerate(row) if seen)


@settings(max_examples=40)
@given(st.lists(sequences(20), min_size=1, max_size=4), windows)
def test_flashinfer_bytes_are_read_back_as_its_kernel_does(batch, window):
    all_parents, prefix_lens, rows = zip(*batch, strict=True)
    trees = [topology(parents) for parents in all_parents]
    mask = flashinfer_mask(trees, prefix_lens, rows=rows, window=window)
    data, first, bits = mask.packed_custom_mask.tolist(), mask.mask_indptr, mask.bit_indptr
    assert (first[0], first[-1]) == (0, len(data))
    for i, (parents, prefix_len, nodes) in enumerate(batch):
        walked = visible_by_walk(parents, prefix_len, rows=nodes, window=window)
        kv_len = prefix_len + len(parents)
        for row, line in enumerate(walked.tolist()):
            for key, seen in enumerate(line):
                offset = row * kv_len + key
                assert data[first[i] + offset // 8] >> (offset % 8) & 1 == seen
        # The whole request, padding included, is numpy's packing of its flat mask.
        packed = np.packbits(walked.numpy().ravel(), bitorder="little").tolist()
        assert data[first[i] : first[i + 1]] == packed
        assert bits[i + 1] - bits[i] == walked.numel()


def test_flashinfer_by_hand():
    mask = flashinfer_mask([topology([-1, 0, 0]), topology([-1, 0])], [2, 0], rows=[[2], None])
    # 1 1 1 0 1 in one byte, 1 0 | 1 1 in the next.
    assert mask.packed_custom_mask.tolist() == [0b10111, 0b1101]
    assert mask.packed_custom_mask.dtype == torch.uint8
    assert (mask.mask_indptr.tolist(), mask.bit_indptr.tolist()) == ([0, 1, 2], [0, 5, 9])
    narrow = flashinfer_mask([topology([-1, 0, 0])], [2], rows=[[2]], window=2)
    assert narrow.packed_custom_mask.tolist() == [0b10100]


@settings(max_examples=40)
@given(st.lists(sequences(70), min_size=1, max_size=3), st.none() | st.integers(70, 100))
def test_tensorrt_llm_words_hold_each_tree_and_zeros(batch, max_tokens):
    all_parents = [parents for parents, _, _ in batch]
    mask = tensorrt_llm_mask([topology(parents) for parents in all_parents], max_tokens)
    count = max(map(len, all_parents)) if max_tokens is None else max_tokens
    assert mask.shape == (len(batch), count, (count + 31) // 32)
    for words, parents in zip(mask, all_parents, strict=True):
        bits, size = unpacked(words, words.shape[1] * 32), len(parents)
        assert torch.equal(bits[:size, :size], visible_by_walk(parents, 0))
        assert bits.sum() == bits[:size, :size].sum()
        assert words[0].tolist() == [1] + [0] * (words.shape[1] - 1)  # the root sees itself


@pytest.mark.parametrize(("size", "words"), [(31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_no_more_words_than_the_nodes_need(size, words):
    """The engine's buffer has exactly as many: one more would shift every row after the first."""
    tree = topology(range(-1, size - 1))
    assert packed_rows(tree).shape == (size, words)
    assert tensorrt_llm_mask([tree]).shape == (1, size, words)
    assert tensorrt_llm_mask([topology([-1])], size).shape == (1, size, words)


def test_made_on_the_device_of_the_trees():
    tree = topology(TREE).to("meta")
    assert packed_rows(tree).device.type == "meta"
    assert flashinfer_mask([tree], [2]).packed_custom_mask.device.type == "meta"
    assert flashinfer_mask([tree], [2]).mask_indptr.device.type == "meta"
    assert tensorrt_llm_mask([tree]).device.type == "meta"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tree: packed_rows(tree, rows=[6]), r"rows\[0\] = 6, but the tree has 6 nodes"),
        (lambda tree: packed_rows(tree, window=0), "window = 0, but a row sees at least itself"),
        (lambda tree: flashinfer_mask([], []), "trees is empty: give at least one"),
        (lambda tree: flashinfer_mask([tree], [1, 2]), "1 trees, but prefix_lens has 2 entries"),
        (lambda tree: flashinfer_mask([tree] * 2, [1, -2]), "sequence 1: prefix_len = -2, but"),
        (lambda tree: flashinfer_mask([tree], [1], window=-1), "window = -1"),
        (lambda tree: tensorrt_llm_mask([]), "trees is empty"),
        (
            lambda tree: tensorrt_llm_mask([topology([-1]), tree], 5),
            r"max_tokens = 5, but trees\[1\] has 6 nodes with its root: it must be at least 6",
        ),
        (lambda tree: inspect.unwrap(tensorrt_llm_mask)([tree], 7.5), r"max_tokens = 7\.5"),
        (
            lambda tree: unpacked(packed_rows(tree), 33),
            r"1 elements of torch.int32 hold 0\.\.32 bits",
        ),
        (lambda tree: unpacked(packed_rows(tree), -1), "size = -1"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(topology(TREE))
