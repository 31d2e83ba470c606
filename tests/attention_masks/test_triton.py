"""The Triton kernels through their interpreter, against float64 and with poisoned memory.

Triton decides at import whether it interprets kernels, so this file runs itself in a process with
TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import importlib
import math
import os
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import (
    InvalidInput,
    RaggedPass,
    TreePass,
    Unavailable,
    Unsupported,
    attend,
    topology,
    tree_attention,
)
from attention_masks.testing import assert_accurate, visible_by_walk
from attention_masks.tree_attention import BufferedPass, Options
from attention_masks.tree_attention.tiles import FURTHER, MIN_CHUNK, Tile, choices

module = importlib.import_module("attention_masks.tree_attention.triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="about Triton outside its interpreter")
CASES = 48
TREE = [-1, 0, 0, 1, 2, 1, 4]
NAN = math.nan


@pytest.fixture(autouse=True)
def _poisoned(request, monkeypatch):
    """Fill the output with NaN before the kernels write it."""
    if not INTERPRETED:
        return
    request.getfixturevalue("quick_interpreter")
    empty = torch.empty_like
    monkeypatch.setattr(module.torch, "empty_like", lambda *a, **kw: empty(*a, **kw).fill_(NAN))


def tensors(seed, batch, kv_heads, group, rows, slots, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, rows, kv_heads * group, dim, generator=generator).mul(2).transpose(1, 2)
    k, v = torch.randn(2, batch, kv_heads, slots, dim, generator=generator).to(dtype)
    return q.to(dtype), k, v


def run(q, k, v, tree_pass, options=None, **kwargs):
    """Run the kernel with scratch that holds NaN."""
    options = options or Options(scale=q.shape[-1] ** -0.5)
    tree_pass.scratch(q.device, 1 << 20).fill_(NAN)
    return module.triton(q, k, v, tree_pass, options, **kwargs)


def draw_parents(draw, max_size=20):
    draws = draw(st.lists(st.integers(0, 10**6), max_size=max_size - 1))
    return [-1, *(value % (i + 1) for i, value in enumerate(draws))]


@st.composite
def cases(draw):
    """Trees and prefixes of up to three sequences, options, tensors and a number of splits."""
    batch = draw(st.sampled_from([1, 1, 2, 3]))
    one_tree_for_all = draw(st.booleans())
    sequences = [
        (draw_parents(draw), draw(st.integers(0, 70) | st.integers(250, 700)))
        for _ in range(1 if one_tree_for_all else batch)
    ]
    last = draw(st.none() | st.integers(1, 3))  # query only that many last nodes
    rows = [
        range(max(0, len(parents) - last), len(parents)) if last else range(len(parents))
        for parents, _ in sequences
    ]
    group = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 16]))
    kv_heads = draw(st.integers(1, 2))
    dim = draw(st.sampled_from([8, 64, 64, 80, 96, 128, 256]))
    options = {
        "window": draw(st.none() | st.integers(1, 14) | st.integers(200, 300)),
        "softcap": draw(st.none() | st.sampled_from([0.5, 5.0, 50.0])),
        "scale": draw(st.sampled_from([dim**-0.5, 0.05])),
    }
    slots = max(prefix_len + len(parents) for parents, prefix_len in sequences)
    seed = draw(st.integers(0, 99))
    dtype = draw(st.sampled_from([torch.float32] * 4 + [torch.float16]))
    max_rows = max(map(len, rows))
    q, k, v = tensors(
        seed, batch, kv_heads, group, max_rows, slots + draw(st.integers(0, 9)), dim, dtype
    )
    options["sinks"] = torch.randn(kv_heads * group) if draw(st.booleans()) else None
    splits = draw(st.none() | st.integers(1, 4)), draw(st.booleans())
    return sequences, rows, options, (q, k, v), splits


@interpreted
@settings(max_examples=CASES)
@given(case=cases())
def test_as_accurate_as_plain_attention(case):
    sequences, rows, options, (q, k, v), splits = case
    batch = len(q)
    passes = [
        TreePass(topology(parents), prefix_len, nodes)
        for (parents, prefix_len), nodes in zip(sequences, rows, strict=True)
    ]
    by_sequence = passes if len(passes) == batch else passes * batch
    for i, tree_pass in enumerate(by_sequence):  # unused slots
        k[i, :, tree_pass.key_count :] = v[i, :, tree_pass.key_count :] = NAN
    shared_or_ragged = passes[0] if len(passes) == 1 else RaggedPass(passes)
    out = run(
        q, k, v, shared_or_ragged, Options(**options), split_count=splits[0], in_place=splits[1]
    )
    assert not shared_or_ragged.counters(q.device).any()
    window = options.pop("window")
    for i, tree_pass in enumerate(by_sequence):
        parents, prefix_len = tree_pass.topology.parents, tree_pass.prefix_len
        visible = visible_by_walk(parents, prefix_len, rows=tree_pass.rows, window=window)
        own, count = slice(i, i + 1), tree_pass.row_count
        assert_accurate(out[own, :, :count], q[own, :, :count], k[own], v[own], visible, **options)
        assert not out[own, :, count:].any()  # padding


@interpreted
@pytest.mark.parametrize("generation", [8, 9, 10])
def test_every_tile_of_the_table(generation):
    for size, dim, tile in choices(generation):
        dtype = torch.float32 if size == 4 else torch.float16
        q, k, v = tensors(0, 1, 1, 3, 7, 107, dim, dtype)
        for splits, in_place in ((None, False), (2, True)):
            tree_pass = TreePass(topology(TREE), 100)
            given = {"tile_choice": tile, "split_count": splits, "in_place": in_place}
            out = run(q, k, v, tree_pass, **given)
            assert_accurate(out, q, k, v, visible_by_walk(TREE, 100))


@interpreted
@pytest.mark.parametrize("prefix_len", [127, 128, 300])
def test_a_mask_of_fewer_keys_than_a_tile(prefix_len):
    (further,) = FURTHER[9].values()
    q, k, v = tensors(0, 1, 1, 3, 7, prefix_len + 7, 128, torch.float16)
    for tile in further:
        tree_pass = TreePass(topology(TREE), prefix_len)
        out = run(q, k, v, tree_pass, tile_choice=tile, split_count=2)
        assert_accurate(out, q, k, v, visible_by_walk(TREE, prefix_len))


@interpreted
@pytest.mark.parametrize("prefix_len", [0, 1, 63, 64, 65, 255, 256, 257, 511, 512, 513])
@pytest.mark.parametrize("window", [None, 64, 65])
def test_borders_of_tiles_and_splits(prefix_len, window):
    q, k, v = tensors(1, 1, 1, 2, 7, prefix_len + 7, 16)
    tree_pass = TreePass(topology(TREE), prefix_len)
    visible = visible_by_walk(TREE, prefix_len, window=window)
    for splits, in_place in ((1, False), (2, False), (3, False), (2, True), (5, True)):
        options = Options(0.25, window=window)
        out = run(q, k, v, tree_pass, options, split_count=splits, in_place=in_place)
        assert_accurate(out, q, k, v, visible)


@interpreted
@pytest.mark.parametrize("rising", [1, -1])
def test_more_splits_than_are_merged_at_once(rising):
    """The largest score is in the last step of the merge, or in the first."""
    prefix_len = (module.MERGED + 2) * MIN_CHUNK
    q, k, v = tensors(2, 1, 1, 1, 7, prefix_len + 7, 16)
    k *= torch.linspace(2.1 - 1.9 * rising, 2.1 + 1.9 * rising, prefix_len + 7)[:, None]
    out = run(q, k, v, TreePass(topology(TREE), prefix_len), split_count=module.MERGED + 3)
    assert_accurate(out, q, k, v, visible_by_walk(TREE, prefix_len))


@interpreted
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_windows_inside_the_tree_are_over_depths(window):
    parents = [-1, 0, 0, 1, 1, 2, 3, 5, 6, 7]  # slots grow faster than depths
    q, k, v = tensors(8, 1, 1, 2, 10, 13, 16)
    out = run(q, k, v, TreePass(topology(parents), 3), Options(0.25, window=window))
    assert_accurate(out, q, k, v, visible_by_walk(parents, 3, window=window))


@interpreted
def test_a_tree_of_several_blocks_of_rows():
    parents = [-1, *(max(0, i - 3) for i in range(149))]
    q, k, v = tensors(2, 1, 1, 2, 150, 170, 16)
    out = run(q, k, v, TreePass(topology(parents), 20))
    assert_accurate(out, q, k, v, visible_by_walk(parents, 20))
    again = run(
        q, k, v, TreePass(topology(parents), 20), tile_choice=Tile(32, 64, 4, 1), split_count=3,
        in_place=True
    )  # fmt: skip
    torch.testing.assert_close(again, out)


@interpreted
def test_bfloat16_rounds_where_a_gpu_would():
    q, k, v = tensors(3, 1, 2, 2, 7, 87, 64, torch.bfloat16)
    out = run(q, k, v, TreePass(topology(TREE), 80))
    assert_accurate(out, q, k, v, visible_by_walk(TREE, 80))


@interpreted
@settings(max_examples=20)
@given(seed=st.integers(0, 999), page=st.sampled_from([1, 16, 24]), ragged=st.booleans())
def test_pages_in_any_order(seed, page, ragged):
    lengths = [70, 33] if ragged else [70, 70]
    q, k, v = tensors(seed, 2, 2, 3, 7, 80, 16)
    blocks = -(-80 // page)
    order = torch.randperm(2 * blocks + 1, generator=torch.Generator().manual_seed(seed))
    table = order[: 2 * blocks].view(2, blocks).int()
    pages = torch.full((2, 2 * blocks + 1, 2, page, 16), NAN)
    for x, stored in zip((k, v), pages, strict=True):
        for i in range(2):
            for slot in range(lengths[i] + 7):
                stored[table[i, slot // page], :, slot % page] = x[i, :, slot]
    trees = [topology(TREE)] * 2
    by_kernel, by_reference = (
        tree_attention(q, *pages, trees, lengths, block_table=table, impl=impl, window=50)
        for impl in ("triton", "reference")
    )
    without_pages = tree_attention(q, k, v, trees, lengths, impl="reference", window=50)
    assert torch.equal(by_reference, without_pages)
    torch.testing.assert_close(by_kernel, without_pages)


@interpreted
@pytest.mark.parametrize("in_place", [False, True])
def test_the_kernel_runs_the_current_contents_of_the_buffer(in_place):
    """As in a captured graph: one pass with spare capacity, whose tree and prefix change."""
    small, large = TreePass(topology([-1, 0, 1]), 31), TreePass(topology(TREE), 300)
    buffered = BufferedPass(RaggedPass([large]).arrays(torch.device("cpu")), key_count=400)
    q, k, v = tensors(4, 1, 1, 2, 7, 400, 16)
    split = {"split_count": 2, "in_place": in_place}
    first = run(q, k, v, buffered, **split)
    torch.testing.assert_close(first, run(q, k, v, large))
    from attention_masks.tree_attention.pass_arrays import fill

    fill(buffered.arrays(q.device), 0, small.topology, small.prefix_len, small.rows)
    second = run(q, k, v, buffered, **split)
    torch.testing.assert_close(second[:, :, :3], run(q[:, :, :3], k, v, small))
    assert not second[:, :, 3:].any()
    with pytest.raises(Unsupported, match="'sdpa' cannot read a tree from a buffer"):
        attend(q, k, v, buffered, impl="sdpa")
    with pytest.raises(InvalidInput, match="key_count = 6 has no room for 7 nodes"):
        BufferedPass(buffered.arrays(q.device), 6)


@interpreted
def test_strides_and_alignment_do_not_matter():
    q, k, v = tensors(5, 2, 2, 2, 7, 107, 16)
    tree_pass = TreePass(topology(TREE), 100)
    expected = run(q, k, v, tree_pass)
    shifted = [torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in (q, k, v)]
    by_slot = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    sinks = torch.randn(4, 3)[:, 1]
    out = run(q, k, v, tree_pass, Options(0.25, sinks=sinks))
    assert torch.equal(out, run(q, k, v, tree_pass, Options(0.25, sinks=sinks.clone())))
    torch.testing.assert_close(out, attend(q, k, v, tree_pass, sinks=sinks, impl="reference"))
    columns = q.transpose(2, 3).contiguous().transpose(2, 3)
    for qkv in (shifted, by_slot, (columns, k, v)):
        assert torch.equal(run(*qkv, tree_pass), expected)


@interpreted
def test_the_kernel_refuses_what_it_does_not_cover():
    q, k, v = tensors(6, 1, 1, 2, 7, 107, 16)
    tree_pass = TreePass(topology(TREE), 100)

    def call(*qkv):
        return attend(*qkv, tree_pass, impl="triton")

    with pytest.raises(InvalidInput, match="k has stride 107 along head_dim, but must be contig"):
        call(q, k.transpose(2, 3).contiguous().transpose(2, 3), v)
    with pytest.raises(Unsupported, match="no backward pass"):
        call(q.clone().requires_grad_(), k, v)
    with pytest.raises(Unsupported, match="not elements of 8 bytes"):
        call(q.double(), k.double(), v.double())
    with pytest.raises(Unsupported, match="no tile for head_dim = 264: it goes up to 256"):
        call(*tensors(0, 1, 1, 2, 7, 107, 264))


@plain
def test_through_the_interpreter(interpret):
    interpret(__file__)


@plain
def test_no_silent_fallback(monkeypatch):
    q, k, v = tensors(7, 1, 1, 2, 7, 107, 16)
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="needs a CUDA device, and the tensors are on cpu"):
            tree_attention(q, k, v, topology(TREE), 100, impl="triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "attention_masks.tree_attention.triton_kernels", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(Unavailable, match="needs Triton: pip install triton"):
        tree_attention(q, k, v, topology(TREE), 100, impl="triton")


@plain
def test_older_gpus_are_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    why = module.available(torch.device("cuda", 0))
    assert why is not None
    assert "needs a GPU of compute capability 8.0 or newer, but cuda:0 has 7.5: use" in why


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(32, 8, 128), (64, 8, 128), (32, 32, 128), (14, 2, 64)])
@pytest.mark.parametrize("nodes", [1, 16, 64])
def test_merged_in_place_on_gpu(heads, nodes):
    """Replays of one graph give the same bits and leave the counters zero, however programs are ordered."""
    q_heads, kv_heads, dim = heads
    parents = [-1, *(i // 3 for i in range(nodes - 1))]
    for prefix_len in (100, 1024, 4096):
        slots = prefix_len + nodes
        q, k, v = (
            x.cuda()
            for x in tensors(0, 1, kv_heads, q_heads // kv_heads, nodes, slots, dim, torch.bfloat16)
        )
        tree_pass = TreePass(topology(parents), prefix_len)
        options = Options(dim**-0.5)
        given = {"split_count": 4, "in_place": True}
        twice = [module.triton(q, k, v, tree_pass, options, **given) for _ in range(2)]
        two_launches = module.triton(q, k, v, tree_pass, options, split_count=4)
        rounding = 2 * torch.finfo(torch.bfloat16).eps * float(v.abs().max())
        torch.testing.assert_close(twice[0], two_launches, rtol=0, atol=rounding)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module.triton(q, k, v, tree_pass, options, **given)
        for _ in range(50):
            out.zero_()
            graph.replay()
            assert torch.equal(out, twice[0])
        assert torch.equal(*twice)
        assert not tree_pass.counters(q.device).any()
        planned = module.triton(q, k, v, tree_pass, options)
        visible = visible_by_walk(parents, prefix_len)
        assert_accurate(planned.cpu(), q.cpu(), k.cpu(), v.cpu(), visible)
