"""The tile map against masks, and against what the kernel reads through Triton's interpreter.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import TreePass, topology
from attention_masks.dense import dense_mask
from attention_masks.tree_attention.tiles import Tile
from treespec.experiments.teaching.mask_figures import (
    MASKED,
    SKIPPED,
    UNMASKED,
    branches,
    draw_cells,
    draw_tree,
    observed_reads,
    places,
    tile_map,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")


@st.composite
def trees(draw, most=90):
    draws = draw(st.lists(st.integers(0, 10**6), max_size=most - 1))
    return [-1, *(value % (i + 1) for i, value in enumerate(draws))]


@plain
@settings(max_examples=150)
@given(st.data(), trees(), st.integers(0, 900), st.integers(1, 9), st.integers(1, 5))
def test_tile_map_agrees_with_the_mask(data, parents, prefix_len, group, split_count):
    tree = topology(parents)
    window = data.draw(st.none() | st.integers(1, 1000))
    rows = data.draw(st.none() | st.lists(st.integers(0, tree.size - 1), min_size=1, max_size=40))
    tile = Tile(data.draw(st.sampled_from([16, 64])), data.draw(st.sampled_from([16, 32])), 4, 1)
    made = tile_map(TreePass(tree, prefix_len, rows), group, tile, split_count, window)
    mask = dense_mask(tree, prefix_len, rows=rows, window=window)
    lines = mask.repeat_interleave(group, dim=0)
    for kinds, block in zip(made.kinds, lines.split(tile.block_m), strict=True):
        for kind, keys in zip(kinds.tolist(), block.split(tile.block_n, dim=1), strict=True):
            assert kind != SKIPPED or not keys.any()
            assert kind != UNMASKED or (keys.all() and keys.shape[1] == tile.block_n)
    assert (made.split[(made.kinds != SKIPPED).any(dim=0)] >= 0).all()


@plain
def test_tile_map_of_a_small_case():
    # 40 nodes after 70 keys in tiles of 32 x 32: keys 0..63 are full, 64..109 hold the tree.
    made = tile_map(TreePass(topology(range(-1, 39)), 70), 1, Tile(32, 32, 4, 1), 1)
    assert made.kinds.tolist() == [
        [UNMASKED, UNMASKED, MASKED, MASKED],
        [UNMASKED, UNMASKED, MASKED, MASKED],
    ]
    # A block whose last node is 25 reads up to key 95 only.
    made = tile_map(TreePass(topology(range(-1, 39)), 70, range(26)), 1, Tile(32, 32, 4, 1), 1)
    assert made.kinds.tolist() == [[UNMASKED, UNMASKED, MASKED, SKIPPED]]


@interpreted
@pytest.mark.parametrize(
    ("prefix_len", "size", "group", "tile", "split_count", "window"),
    [
        (300, 90, 2, Tile(64, 32, 4, 1), 2, None),
        (0, 90, 3, Tile(64, 16, 4, 1), 1, None),
        (513, 20, 1, Tile(16, 64, 4, 1), 3, None),
        (300, 40, 1, Tile(16, 32, 4, 1), 1, 70),
        (40, 40, 2, Tile(16, 32, 4, 1), 1, 1000),
    ],
)
def test_the_kernel_reads_what_the_map_says(
    quick_interpreter, prefix_len, size, group, tile, split_count, window
):
    parents = [-1, *((7 * i) % (i + 1) for i in range(size - 1))]
    tree_pass = TreePass(topology(parents), prefix_len)
    made = tile_map(tree_pass, group, tile, split_count, window)
    seen = observed_reads(tree_pass, group, tile, split_count, window)
    assert torch.equal(seen, made.kinds != SKIPPED)


@plain
@pytest.mark.slow
def test_through_the_interpreter(interpret):
    assert "5 passed" in interpret(__file__)


@plain
@given(trees(most=30))
def test_a_tree_is_laid_out_without_crossings(parents):
    tree = topology(parents)
    place, of = places(tree), branches(tree)
    for depth in range(max(tree.depths) + 1):
        level = [node for node in tree.order.tolist() if tree.depths[node] == depth]
        assert all(place[b] - place[a] >= 1 for a, b in pairwise(level))
    assert of[0] == 0
    assert all(of[n] == of[p] for n, p in enumerate(tree.parents) if p > 0)


@plain
def test_figures_are_drawn():
    from matplotlib.figure import Figure

    tree = topology([-1, 0, 0, 1])
    left, right = Figure().subplots(1, 2)
    draw_tree(left, tree, ["grey", "blue", "red", "blue"], list("abcd"))
    draw_cells(right, tree.ancestors.int(), ["white", "black"])
    assert [text.get_text() for text in left.texts] == list("abcd")
    shown = right.images[0].get_array()
    assert shown[1, 1].tolist() == [0, 0, 0]
    assert shown[1, 2].tolist() == [1, 1, 1]
