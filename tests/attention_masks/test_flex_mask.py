"""The mask for FlexAttention: its function, its tiles, and attention under it."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from attention_masks import InvalidInput, dense_mask, topology
from attention_masks.flex import block_mask, draw, mask_mod
from attention_masks.testing import assert_accurate, visible_by_walk

TREE = [-1, 0, 0, 1, 2, 1]
ZERO = torch.tensor(0)


@st.composite
def cases(draw):
    """Parents, prefix length, and options: rows in any order, a window, a group."""
    draws = draw(st.lists(st.integers(0, 10**6), max_size=24))
    reach = draw(st.integers(1, 24))  # a chain if 1: deep enough for a window to cut the tree
    parents = [-1, *(i - value % min(reach, i + 1) for i, value in enumerate(draws))]
    rows = draw(st.none() | st.lists(st.integers(0, len(draws)), min_size=1, max_size=12))
    window = draw(st.none() | st.integers(1, 40))
    group = draw(st.integers(1, 4))
    return parents, draw(st.integers(0, 30)), {"rows": rows, "window": window, "group": group}


block_sizes = st.integers(1, 16) | st.tuples(st.integers(1, 16), st.integers(1, 16))


def walked(parents, prefix_len, options):
    """The mask of the folded rows, by walking from each row to the root."""
    unfolded = {"rows": options["rows"], "window": options["window"]}
    return visible_by_walk(parents, prefix_len, **unfolded).repeat(options["group"], 1)


def flags(counts, tiles):
    """The tiles that a table lists, as booleans."""
    out = torch.zeros(tiles.shape[-2:], dtype=torch.bool)
    for line, count, listed in zip(out, counts[0, 0].tolist(), tiles[0, 0], strict=True):
        line[listed[:count].long()] = True
        assert listed[:count].tolist() == sorted(set(listed[:count].tolist()))
    return out


def as_a_kernel_reads(mask):
    """Rows x keys as a kernel sees them: full tiles without a mask, partial ones by the function."""
    (rows, keys), (height, width) = mask.seq_lengths, mask.BLOCK_SIZE
    full, partial = [
        tiles.repeat_interleave(height, 0).repeat_interleave(width, 1)[:rows, :keys]
        for tiles in (
            flags(mask.full_kv_num_blocks, mask.full_kv_indices),
            flags(mask.kv_num_blocks, mask.kv_indices),
        )
    ]
    visible = mask.mask_mod(ZERO, ZERO, torch.arange(rows)[:, None], torch.arange(keys))
    return full | (partial & visible)


@settings(max_examples=50)
@given(cases())
def test_the_function_equals_the_walk_and_hides_keys_after_the_nodes(case):
    parents, prefix_len, options = case
    visible = mask_mod(topology(parents), prefix_len, **options)
    expected = walked(parents, prefix_len, options)
    rows, keys = expected.shape
    for dtype in (torch.int32, torch.int64):
        row, key = torch.arange(rows, dtype=dtype)[:, None], torch.arange(keys + 3, dtype=dtype)
        seen = visible(ZERO, ZERO, row, key)
        assert torch.equal(seen[:, :keys], expected)
        assert not seen[:, keys:].any()


@settings(max_examples=50)
@given(cases(), block_sizes)
def test_tiles_are_those_of_the_mask(case, block_size):
    parents, prefix_len, options = case
    mask = block_mask(topology(parents), prefix_len, block_size=block_size, **options)
    expected = walked(parents, prefix_len, options)
    assert mask.shape == (1, 1, *expected.shape)
    assert torch.equal(as_a_kernel_reads(mask), expected)
    # No superfluous tile, and none partial that could be full: missing rows count as seeing everything.
    height, width = mask.BLOCK_SIZE
    bottom, right = -expected.shape[0] % height, -expected.shape[1] % width
    for missing_rows_see_all in (False, True):
        tall = torch.nn.functional.pad(expected, (0, 0, 0, bottom), value=missing_rows_see_all)
        wide = torch.nn.functional.pad(tall, (0, right), value=False)
        tiles = wide.unflatten(0, (-1, height)).unflatten(2, (-1, width)).transpose(1, 2)
        full = flags(mask.full_kv_num_blocks, mask.full_kv_indices)
        if missing_rows_see_all:
            assert torch.equal(full, tiles.flatten(2).all(dim=2))
        else:
            partial = flags(mask.kv_num_blocks, mask.kv_indices)
            assert torch.equal(full | partial, tiles.flatten(2).any(dim=2))
            assert not (full & partial).any()


@settings(max_examples=15)
@given(cases(), block_sizes)
def test_coverage_and_tables_are_those_of_torch(case, block_size):
    parents, prefix_len, options = case
    mask = block_mask(topology(parents), prefix_len, block_size=block_size, **options)
    _, _, rows, keys = mask.shape
    visible = mask_mod(topology(parents), prefix_len, **options)
    by_torch = torch_flex.create_block_mask(
        visible, None, None, rows, keys, device="cpu", BLOCK_SIZE=block_size
    )
    assert torch.equal(mask.to_dense(), by_torch.to_dense())
    assert mask.shape == by_torch.shape
    assert mask.BLOCK_SIZE == by_torch.BLOCK_SIZE
    # The tables by key block, for gradients, equal those that torch derives from ours.
    tables = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    derived = torch_flex.BlockMask.from_kv_blocks(*tables)
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        ours, theirs = getattr(mask, name), getattr(derived, name)
        assert torch.equal(ours, theirs), name
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def test_only_the_edges_are_partial():
    tree = topology(TREE)
    assert draw(block_mask(tree, 11, group=2, block_size=4)).splitlines() == [
        "rows | keys",
        "   0 | # # # + .",
        "   4 | # # # + +",
        "   8 | # # # + +",
    ]
    # Rows at depths 0 to 2 see positions from 7, 8 and 9 on.
    assert draw(block_mask(tree, 11, window=5, block_size=2)).splitlines()[1:] == [
        "   0 | . . . + # # + . .",
        "   2 | . . . . + # + + .",
        "   4 | . . . . + # + + +",
    ]
    # A chain of 12 under a window of 4: a band, with no tile below it.
    assert draw(block_mask(topology(range(-1, 11)), 4, window=4, block_size=4)).splitlines()[
        1:
    ] == [
        "   0 | + + . .",
        "   4 | . + + .",
        "   8 | . . + +",
    ]
    # A long prefix is never expanded: two tables of 8 by 8201 tiles instead of 10^9 booleans.
    mask = block_mask(topology(range(-1, 1023)), 2**20, block_size=128)
    assert mask.full_kv_num_blocks.tolist() == [[list(range(8192, 8200))]]
    assert mask.kv_num_blocks.tolist() == [[[1] * 8]]


@pytest.fixture
def eager(monkeypatch):
    """FlexAttention uncompiled: exact, and without a second of tracing for each new shape."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def tensors(rows, keys, heads=1, group=1):
    generator = torch.Generator().manual_seed(rows * keys)
    q = torch.randn(2, heads * group, rows, 8, generator=generator)
    k, v = torch.randn(2, 2, heads, keys, 8, generator=generator)
    return q, k, v


@pytest.mark.usefixtures("eager")
@settings(max_examples=15)
@given(cases())
def test_attention_is_that_of_the_dense_mask(case):
    parents, prefix_len, options = case
    tree, group = topology(parents), options["group"]
    unfolded = {"rows": options["rows"], "window": options["window"]}
    visible = dense_mask(tree, prefix_len, **unfolded)
    rows, keys = visible.shape
    q, k, v = tensors(rows, keys, heads=2, group=group)
    mask = block_mask(tree, prefix_len, **options)
    out = torch_flex.flex_attention(q.reshape(2, 2, group * rows, 8), k, v, block_mask=mask)
    assert_accurate(out.reshape(q.shape), q, k, v, visible)


def test_compiled_once_for_all_prefixes_trees_and_windows():
    torch._dynamo.reset()
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    flex = torch.compile(torch_flex.flex_attention, backend=backend, dynamic=True)
    for prefix_len, window, parents in (
        (3, 4, TREE), (5, 4, TREE), (9, 7, TREE), (12, 2, [-1, 0, 1, 1, 2, 1, 0, 3, 4])
    ):  # fmt: skip
        tree = topology(parents)
        q, k, v = tensors(tree.size, prefix_len + tree.size)
        out = flex(q, k, v, block_mask=block_mask(tree, prefix_len, window=window))
        assert_accurate(out, q, k, v, dense_mask(tree, prefix_len, window=window))
    assert len(compiled) == 1


def test_made_on_the_device_of_the_topology():
    mask = block_mask(topology(TREE).to("meta"), 5, rows=[1, 4], window=3, group=2)
    assert {x.device.type for x in mask.as_tuple() if isinstance(x, torch.Tensor)} == {"meta"}
    meta = torch.arange(4, device="meta")
    assert mask.mask_mod(meta, meta, meta, meta).device.type == "meta"


@pytest.mark.parametrize("function", [mask_mod, block_mask])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prefix_len": -1}, "prefix_len = -1, but it counts cached keys: it must be at least 0"),
        ({"rows": [6]}, r"rows\[0\] = 6, but the tree has 6 nodes: rows must be in 0\.\.5"),
        ({"rows": []}, "rows is empty"),
        ({"window": 0}, "window = 0, but a row sees at least itself"),
        ({"group": 0}, "group = 0, but it must be at least 1"),
        ({"group": 1.5}, r"group = 1\.5, but it must be a plain integer"),
    ],
)
def test_invalid_arguments_are_refused(function, kwargs, message):
    with pytest.raises(InvalidInput, match=message):
        inspect.unwrap(function)(topology(TREE), **{"prefix_len": 2, **kwargs})


@pytest.mark.parametrize(
    ("block_size", "message"),
    [
        (0, "block_size = 0, but it must be at least 1"),
        ((4, -1), "block_size = -1, but it must be at least 1"),
        ((4, 4, 4), r"block_size = \(4, 4, 4\), but it must be one number or two"),
        ("4", "block_size = '4', but it must be a plain integer"),
    ],
)
def test_block_sizes_that_do_not_fit_are_refused(block_size, message):
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(block_mask)(topology(TREE), 2, block_size=block_size)
