"""Tree attention: by hand, against float64 on random trees, against itself, and its refusals."""

import importlib
import inspect
import math

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
from attention_masks.testing import assert_accurate, plain_attention, visible_by_walk
from attention_masks.tree_attention import IMPLEMENTATIONS, choose
from attention_masks.tree_attention.with_lse import merge

IMPLS = [name for name in IMPLEMENTATIONS if name != "triton"]  # see test_triton.py
WITHOUT_SOFTCAP = ("sdpa", "two_pass")
TREE = [-1, 0, 0, 1, 2, 1, 4]
CPU = torch.device("cpu")


def tensors(seed, rows, slots, used, *, batch=1, kv_heads=2, group=2, dim=8, dtype=torch.float32):
    """q as models compute it (heads transposed, not contiguous), k and v as views of a cache.

    Slots from `used` on hold NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, rows, kv_heads * group, dim, generator=generator).mul(2).transpose(1, 2)
    cache = torch.randn(2, batch, kv_heads, slots, dim, generator=generator)
    cache[:, :, :, used:] = math.nan
    k, v = cache.to(dtype)
    return q.to(dtype), k, v


@st.composite
def cases(draw):
    """A tree, its prefix length, the queried rows, options, and tensors of random sizes."""
    draws = draw(st.lists(st.integers(0, 10**6), max_size=12))
    parents = [-1, *(value % (i + 1) for i, value in enumerate(draws))]
    rows = draw(st.none() | st.lists(st.integers(0, len(draws)), min_size=1, max_size=6))
    prefix_len = draw(st.integers(0, 10))
    options = {
        "window": draw(st.none() | st.integers(1, 14)),
        "softcap": draw(st.none() | st.sampled_from([0.5, 5.0, 50.0])),
        "scale": draw(st.none() | st.sampled_from([0.1, 1.0])),
        "sinks": None,
    }
    used = prefix_len + len(parents)
    q, k, v = tensors(
        draw(st.integers(0, 99)),
        len(parents) if rows is None else len(rows),
        used + draw(st.integers(0, 5)),
        used,
        batch=draw(st.integers(1, 2)),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 3, 5])),
        dim=draw(st.sampled_from([4, 8])),
        dtype=draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16])),
    )
    if draw(st.booleans()):
        options["sinks"] = torch.linspace(-2, 2, q.shape[1])
    return parents, prefix_len, rows, options, (q, k, v)


@pytest.mark.parametrize("impl", IMPLS)
def test_by_hand(impl):
    # One head of one number; all scores are zero, so an output is the mean of the visible values.
    q, k = torch.zeros(1, 1, 4, 1), torch.zeros(1, 1, 8, 1)
    v = torch.tensor([1.0, 2, 4, 8, 16, 32, 999, math.nan])[None, None, :, None]
    out = tree_attention(q, k, v, topology([-1, 0, 0, 1]), 2, impl=impl)
    # root: 1 2 4; children: 1 2 4 8 and 1 2 4 16; grandchild: 1 2 4 8 32
    torch.testing.assert_close(out.flatten(), torch.tensor([7 / 3, 15 / 4, 23 / 4, 47 / 5]))
    out = tree_attention(q, k, v, topology([-1, 0, 0, 1]), 2, window=2, impl=impl)
    # root: 2 4; children: 4 8 and 4 16; grandchild: 8 32
    torch.testing.assert_close(out.flatten(), torch.tensor([3.0, 6, 10, 20]))


@pytest.mark.parametrize("impl", ["reference", "sdpa", "two_pass"])
@settings(max_examples=120)
@given(case=cases())
def test_as_accurate_as_plain_attention_on_random_trees(impl, case):
    check_accuracy(impl, case)


@settings(max_examples=8)  # each takes a tenth of a second uncompiled
@given(case=cases())
def test_flex_is_as_accurate(case):
    check_accuracy("flex", case)


def check_accuracy(impl, case):
    parents, prefix_len, rows, options, (q, k, v) = case
    if impl in WITHOUT_SOFTCAP:
        options = {**options, "softcap": None}
    window = options.pop("window")
    visible = visible_by_walk(parents, prefix_len, rows=rows, window=window)
    before = [x.clone() for x in (q, k, v)]
    out = tree_attention(
        q, k, v, topology(parents), prefix_len, rows=rows, window=window, impl=impl, **options
    )
    assert_accurate(out, q, k, v, visible, **options)
    for tensor, copy in zip((q, k, v), before, strict=True):
        equal = torch.equal(tensor, copy)
        assert equal or torch.allclose(tensor, copy, rtol=0, atol=0, equal_nan=True)


@given(case=cases())
def test_the_reference_keeps_float64(case):
    parents, prefix_len, rows, options, qkv = case
    q, k, v = (x.double() for x in qkv)
    window = options.pop("window")
    visible = visible_by_walk(parents, prefix_len, rows=rows, window=window)
    truth = plain_attention(q, k, v, visible, dtype=torch.float64, **options)
    tree_pass = TreePass(topology(parents), prefix_len, rows)
    out = attend(q, k, v, tree_pass, window=window, impl="reference", **options)
    torch.testing.assert_close(out, truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_reference_rounds_narrow_dtypes_once(dtype):
    q, k, v = tensors(0, 7, 20, 17, dtype=dtype)
    out = tree_attention(q, k, v, topology(TREE), 10, impl="reference")
    wide = tree_attention(q.float(), k.float(), v.float(), topology(TREE), 10, impl="reference")
    assert torch.equal(out, wide.to(dtype))


def test_sdpa_reads_the_cache_itself(monkeypatch):
    """Keys and values that several heads share are not repeated."""
    q, k, v = tensors(0, 7, 20, 17)
    given, attend_fused = [], torch.nn.functional.scaled_dot_product_attention

    def watched(q, k, v, **more):
        given.extend([k, v])
        return attend_fused(q, k, v, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    tree_attention(q, k, v, topology(TREE), 10, impl="sdpa")
    addresses = [[x.untyped_storage().data_ptr() for x in pair] for pair in (given, (k, v))]
    assert addresses[0] == addresses[1]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_chain_is_causal_attention(impl):
    q, k, v = tensors(1, 9, 12, 9, group=1)
    causal = torch.nn.functional.scaled_dot_product_attention(
        q, k[:, :, :9], v[:, :, :9], is_causal=True
    )
    out = tree_attention(q, k, v, topology(range(-1, 8)), 0, impl=impl)
    torch.testing.assert_close(out, causal)


@pytest.mark.parametrize("window", [None, 1, 4, 9])
@pytest.mark.parametrize("impl", IMPLS)
def test_pending_tokens_as_a_chain_equal_a_longer_prefix(impl, window):
    prefix_len, pending = 5, 3
    q, k, v = tensors(2, len(TREE), 18, prefix_len + pending + len(TREE))
    committed = tree_attention(
        q, k, v, topology(TREE), prefix_len + pending, window=window, impl=impl
    )
    chained = [-1, *range(pending), *(pending + parent for parent in TREE[1:])]
    chained[pending] = pending - 1  # the root hangs below the last pending token
    out = tree_attention(
        q,
        k,
        v,
        topology(chained),
        prefix_len,
        rows=range(pending, len(chained)),
        window=window,
        impl=impl,
    )
    torch.testing.assert_close(out, committed)


@pytest.mark.parametrize("impl", IMPLS)
def test_growing_level_by_level_equals_the_whole_tree(impl):
    prefix_len, parents = 4, [-1, 0, 0, 1, 2, 2, 3, 5]
    q, k, v = tensors(3, 8, 14, 12, group=3)
    whole = tree_attention(q, k, v, topology(parents), prefix_len, window=5, impl=impl)
    for start, stop in ((0, 1), (1, 3), (3, 6), (6, 8)):
        keys, values = k.clone(), v.clone()
        keys[:, :, prefix_len + stop :] = values[:, :, prefix_len + stop :] = math.nan
        level = tree_attention(
            q[:, :, start:stop],
            keys,
            values,
            topology(parents[:stop]),
            prefix_len,
            rows=range(start, stop),
            window=5,
            impl=impl,
        )
        torch.testing.assert_close(level, whole[:, :, start:stop])


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_gradients_flow_even_from_a_pass_made_in_inference_mode(impl):
    with torch.inference_mode():
        tree_pass = TreePass(topology([-1, 0, 0, 2]), 3)
        attend(*tensors(4, 4, 8, 7, dim=4), tree_pass, window=4, impl=impl)
        assert not tree_pass.mask(4, CPU).is_inference()
    inputs = [x.double().requires_grad_() for x in tensors(4, 4, 7, 7, dim=4)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(q, k, v, tree_pass, window=4, impl=impl), inputs
    )
    narrow = [x.detach().float().requires_grad_() for x in inputs]
    attend(*narrow, tree_pass, window=4, impl=impl).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in narrow)


def test_sdpa_skips_keys_before_every_window():
    tree_pass = TreePass(topology(TREE), 10, rows=[3, 6])  # positions 12 and 13
    assert tree_pass.keys(None) == slice(0, 17)
    assert tree_pass.keys(4) == slice(9, 17)
    assert tree_pass.keys(1) == slice(10, 17)  # never past the first node
    q, k, v = tensors(5, 2, 17, 17)
    expected = attend(q, k, v, tree_pass, window=4, impl="reference")
    k[:, :, :9] = v[:, :, :9] = math.nan
    torch.testing.assert_close(attend(q, k, v, tree_pass, window=4, impl="sdpa"), expected)


@pytest.mark.parametrize(
    ("parents", "rows", "window", "needed"),
    [
        ([-1], None, None, False),
        ([-1], None, 4, False),  # the four keys that are read are all visible
        ([-1, 0, 1], [2], None, False),
        ([-1, 0, 1], [2], 3, False),
        ([-1, 0, 1], [2], 2, True),  # node 0 is out of the window
        ([-1, 0, 1], [1], None, True),
        ([-1, 0, 1], [1, 2], None, True),
        ([-1, 0, 0], [2], None, True),
        ([-1, 0, 0], None, None, True),
    ],
)
def test_no_mask_is_made_where_nothing_is_hidden(parents, rows, window, needed):
    tree_pass = TreePass(topology(parents), 6, rows)
    bias = tree_pass.bias(window, torch.float32, CPU)
    assert (bias is not None) == needed
    visible = tree_pass.mask(window, CPU)[:, tree_pass.keys(window)]
    assert torch.equal(visible, torch.ones_like(visible) if bias is None else bias == 0)


def test_layers_of_one_pass_share_its_masks():
    tree_pass = TreePass(topology(TREE), 10)
    bias = tree_pass.bias(None, torch.bfloat16, CPU, 3)
    assert bias is not None
    assert bias.shape == (21, 17)
    assert tree_pass.bias(None, torch.bfloat16, CPU, 3) is bias
    assert tree_pass.bias(14, torch.bfloat16, CPU, 3) is bias  # the deepest row is at position 13
    assert tree_pass.bias(13, torch.bfloat16, CPU, 3) is not bias
    assert tree_pass.mask(14, CPU) is tree_pass.mask(None, CPU)


@pytest.mark.parametrize("impl", ["reference", "sdpa", "two_pass"])
def test_one_tree_for_every_sequence_in_all_notations(impl):
    q, k, v = tensors(8, 7, 20, 17, batch=3)
    tree_pass = TreePass(topology(TREE), 10)
    expected = attend(q, k, v, tree_pass, impl=impl)
    assert torch.equal(attend(q, k, v, RaggedPass([tree_pass]), impl=impl), expected)
    repeated = attend(q, k, v, RaggedPass([tree_pass] * 3), impl=impl)
    torch.testing.assert_close(repeated, expected)


def test_a_part_that_sees_nothing_may_hold_nan():
    """Kernels return NaN for rows without keys; their share is 0, but 0 times NaN would be NaN."""
    out, nan = torch.ones(2, 3), torch.full((2, 3), math.nan)
    lse, nothing = torch.zeros(2), torch.full((2,), -math.inf)
    assert torch.equal(merge(out, lse, nan, nothing), out)
    assert torch.equal(merge(out, lse, 3 * out, lse), 2 * out)


def test_entries_of_the_block_table_that_are_not_used_may_hold_anything():
    q, k, v = tensors(9, 7, 20, 17)
    table = torch.tensor([[0, 2**30, -(2**30)]], dtype=torch.int32)
    arguments = [q, k, v, topology(TREE), 10]
    out = tree_attention(*arguments, block_table=table, impl="reference")
    assert torch.equal(out, tree_attention(*arguments, impl="reference"))


def test_entries_after_a_shorter_sequence_are_not_read():
    """Two pages of 20 slots for 37 keys; one page for 12 keys, whose second entry is invalid."""
    _, pages, values = tensors(10, 7, 20, 20, batch=3)
    q = tensors(11, 7, 20, 20, batch=2)[0]
    table = torch.tensor([[0, 1], [2, 2**30]], dtype=torch.int32)
    out = tree_attention(
        q, pages, values, [topology(TREE)] * 2, [30, 5], block_table=table, impl="reference"
    )
    for i, (used, prefix) in enumerate((([0, 1], 30), ([2], 5))):
        k, v = (torch.cat(list(x[used]), dim=1)[None] for x in (pages, values))
        alone = tree_attention(q[i : i + 1], k, v, topology(TREE), prefix, impl="reference")
        torch.testing.assert_close(out[i : i + 1], alone)


def test_auto_takes_the_implementation_that_choose_names():
    q, k, v = tensors(6, 7, 20, 17)
    assert choose() == "sdpa"
    assert choose(softcap=3.0) == "reference"
    for softcap in (None, 3.0):
        by_auto = tree_attention(q, k, v, topology(TREE), 10, softcap=softcap)
        named = choose(softcap=softcap)
        by_name = tree_attention(q, k, v, topology(TREE), 10, softcap=softcap, impl=named)
        assert torch.equal(by_auto, by_name)


def test_auto_takes_the_kernel_where_it_has_a_tile(monkeypatch):
    api = importlib.import_module("attention_masks.tree_attention.api")
    monkeypatch.setattr(api, "available", lambda device: None)
    api._choose.cache_clear()
    assert choose("cuda", 512, softcap=3.0) == "triton"
    assert choose("cuda", 512, head_dim=320) == "sdpa"
    assert choose("cuda", 512, dtype=torch.float64) == "sdpa"
    assert [choose("cuda", rows) for rows in (1024, 1025)] == ["triton", "sdpa"]
    assert choose("cuda", 4096) == "sdpa"
    assert choose("cuda", 4096, softcap=3.0) == "reference"
    assert choose("cuda", 4096, paged=True) == "triton"
    assert choose("cpu", 512, paged=True) == "reference"
    api._choose.cache_clear()
    monkeypatch.setattr(api, "available", lambda device: "no Triton")
    assert choose("cuda", 512) == "sdpa"
    api._choose.cache_clear()


def test_an_implementation_never_falls_back_to_another():
    q, k, v = tensors(7, 7, 20, 17)
    with pytest.raises(Unsupported, match=r"'sdpa' cannot apply softcap = 3\.0: use .*reference"):
        tree_attention(q, k, v, topology(TREE), 10, softcap=3.0, impl="sdpa")
    with pytest.raises(Unsupported, match=r"'two_pass' cannot apply softcap = 3\.0: use .*refer"):
        tree_attention(q, k, v, topology(TREE), 10, softcap=3.0, impl="two_pass")
    with pytest.raises(Unavailable, match=r"'triton' needs a CUDA device, and .* are on cpu: use"):
        tree_attention(q, k, v, topology(TREE), 10, impl="triton")
    with pytest.raises(Unsupported, match=r"no backward pass here .*: use impl='reference'"):
        tree_attention(q.requires_grad_(), k, v, topology(TREE), 10, impl="two_pass")
    assert issubclass(Unsupported, NotImplementedError)
    assert issubclass(Unavailable, NotImplementedError)


GOOD = {
    "q": torch.zeros(1, 4, 7, 8),
    "k": torch.zeros(1, 2, 20, 8),
    "v": torch.zeros(1, 2, 20, 8),
    "prefix_len": 10,
}
BAD = [
    (
        {"q": torch.zeros(4, 7, 8)},
        r"q is \[4, 7, 8\] and k .* but q must be \[batch, q_heads, rows",
    ),
    ({"v": torch.zeros(1, 2, 19, 8)}, r"k is \[1, 2, 20, 8\] and v \[1, 2, 19, 8\]"),
    ({"q": torch.zeros(2, 4, 7, 8)}, "batch and head_dim must be equal"),
    ({"q": torch.zeros(1, 4, 7, 16)}, "batch and head_dim must be equal"),
    ({"q": torch.zeros(1, 5, 7, 8)}, "q has 5 heads and k 2, but q_heads must be a multiple"),
    ({"q": torch.zeros(1, 4, 2, 8)}, "q holds 2 rows, but 7 of the tree's 7 nodes are queried"),
    ({"rows": [1, 2]}, "q holds 7 rows, but 2 of the tree's 7 nodes are queried"),
    ({"prefix_len": 14}, r"k has 20 slots, but prefix_len \+ nodes = 14 \+ 7 = 21 keys are needed"),
    ({"prefix_len": -1}, "prefix_len = -1"),
    ({"rows": [0, 7]}, r"rows\[1\] = 7, but the tree has 7 nodes"),
    ({"rows": []}, "rows is empty"),
    ({"q": torch.zeros(1, 4, 7, 8).half()}, r"are torch\.float16, torch\.float32, torch\.float32"),
    ({"v": torch.zeros(1, 2, 20, 8).double()}, "must have one dtype, one of"),
    ({name: GOOD[name].int() for name in "qkv"}, "must have one dtype, one of"),
    ({"q": torch.zeros(1, 4, 7, 8, device="meta")}, "are on meta, cpu, cpu, but must be on one"),
    ({"window": 0}, "window = 0"),
    ({"softcap": 0.0}, r"softcap = 0\.0, but it bounds the scores: it must be above 0"),
    ({"softcap": math.nan}, "softcap = nan"),
    ({"softcap": math.inf}, "softcap = inf"),
    ({"q": torch.zeros(1, 0, 7, 8)}, "but heads and head_dim must be above 0"),
    ({name: GOOD[name][..., :0] for name in "qkv"}, "but heads and head_dim must be above 0"),
    ({name: GOOD[name].to(torch.float8_e5m2) for name in "qkv"}, "one dtype, one of float16, "),
    ({"impl": "spda"}, "impl = 'spda' is not known: .* 'reference', 'sdpa', 'two_pass', 'flex', "),
    ({"scale": math.inf}, "scale = inf, but it multiplies the scores: it must be finite"),
    ({"scale": -1.0}, "scale = -1.0, but it .* not negative"),
    (
        {"sinks": torch.zeros(2)},
        r"sinks are torch.float32 \[2\], but must be .* each of the 4 query",
    ),
    ({"sinks": torch.zeros(4, device="meta")}, "sinks are on meta, but q on cpu"),
    ({"prefix_len": [10, 10]}, "1 trees and 2 prefix lengths for a batch of 1"),
    ({"block_table": torch.zeros(1, 2)}, "block_table is torch.float32 .* but must be int32"),
    (
        {"block_table": torch.zeros(1, 0, dtype=torch.int32)},
        r"k has 0 slots, but prefix_len \+ nodes = 10 \+ 7 = 17 keys are needed",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
@pytest.mark.parametrize("impl", ["auto", *IMPLS])
def test_invalid_arguments_are_refused(monkeypatch, impl, change, message):
    # As users call it, without the type checks of the tests, which would raise first.
    unchecked = inspect.unwrap(tree_attention)
    monkeypatch.setitem(unchecked.__globals__, "attend", inspect.unwrap(attend))
    for check in ("check_numbers", "check_tensors", "check_options"):
        bare_check = inspect.unwrap(unchecked.__globals__[check])
        monkeypatch.setitem(unchecked.__globals__, check, bare_check)
    with pytest.raises(ValueError, match=message) as caught:
        unchecked(**{**GOOD, "topology": topology(TREE), "impl": impl, **change})
    assert isinstance(caught.value, InvalidInput)
