"""Attention of few rows, compared with float64 within a rounding bound."""

import math

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from treespec.kernels.calls import calls
from treespec.kernels.masked_attention import masked_attention
from treespec.models.passes.compiled_attention import MaskedAttention, Seen
from treespec.models.passes.compiled_pass import tree_arrays

SINGLE, BRAIN = torch.float32, torch.bfloat16
UNIT = torch.finfo(SINGLE).eps / 2
HIDDEN = torch.finfo(SINGLE).min


def inputs(seed, dtype, shared, group, rows, keys, dim, value_dim):
    """Queries, keys, values, and a mask in which each row attends to half of the keys, and at least one."""
    draws = torch.Generator().manual_seed(seed)
    shapes = [(shared * group, rows, dim), (shared, keys, dim), (shared, keys, value_dim)]
    query, key, value = (torch.randn(1, *shape, generator=draws).to(dtype) for shape in shapes)
    visible = torch.rand(rows, keys, generator=draws) < 0.5
    visible[torch.arange(rows), torch.randint(keys, (rows,), generator=draws)] = True
    return query, key, value, visible


def bias_of(visible):
    return torch.where(visible, 0.0, HIDDEN)


def truth_and_bound(query, key, value, visible, sinks, scale, softcap):
    """The result in float64, and an error bound for float32 sums of weights rounded to the dtype."""
    group, (keys, dim) = query.shape[1] // key.shape[1], key.shape[2:]
    q, k, v = (one.double() for one in (query, key, value))
    k, v = (one.repeat_interleave(group, dim=1) for one in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    terms = (dim + 3) * UNIT * scale * (q.abs() @ k.abs().transpose(-1, -2))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
        terms += 16 * UNIT * softcap
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)
    spread = (scores.amax(-1) - scores.masked_fill(scores.isinf(), torch.inf).amin(-1)).amax()
    each = 2 * terms.max() + (spread + keys + 16) * UNIT + 4e-7
    each += torch.finfo(query.dtype).eps if query.dtype == BRAIN else 0.0
    weights = weights[..., :keys]
    error = math.expm1(2 * each) * (weights @ v.abs()) + 1e-30
    truth = weights @ v
    last = torch.finfo(query.dtype).eps / 2
    return truth, error + last * (truth.abs() + error)


@drawn(
    st.sampled_from([SINGLE, BRAIN]), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9),
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 70), st.sampled_from([0.0, 2.0]),
    st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def check(dtype, shared, group, rows, keys, pairs, value_dim, softcap, sunk, sharp, seed):
    dim = 2 * pairs - (dtype == SINGLE)
    query, key, value, visible = inputs(seed, dtype, shared, group, rows, keys, dim, value_dim)
    sinks = torch.randn(shared * group) if sunk else None
    scale = 30.0 if sharp else dim**-0.5  # weights that underflow
    got = masked_attention(query, key, value, bias_of(visible), sinks, scale, softcap)
    assert (got.dtype, got.shape) == (dtype, (1, rows, shared * group, value_dim))
    truth, bound = truth_and_bound(query, key, value, visible, sinks, scale, softcap)
    assert ((got.transpose(1, 2).double() - truth).abs() <= bound).all()


def test_within_the_bound_of_float64(kernel):
    check()


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_keys_are_read_in_parts_where_there_are_more_threads_than_heads(kernel, dtype):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for keys in (300, 900):  # read in one part and in three
            query, key, value, visible = inputs(0, dtype, 1, 3, 5, keys, 16, 24)
            visible[0] = torch.arange(keys) == keys - 1  # no visible key in the first part
            got = masked_attention(query, key, value, bias_of(visible), None, 0.25, 0.0)
            truth, bound = truth_and_bound(query, key, value, visible, None, 0.25, 0.0)
            assert ((got.transpose(1, 2).double() - truth).abs() <= bound).all()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_a_row_does_not_depend_on_the_others_nor_on_keys_that_it_does_not_see(kernel, dtype):
    query, key, value, visible = inputs(1, dtype, 2, 3, 30, 200, 32, 48)
    visible[:, 150:] = False
    visible[:, 0] = True
    whole = masked_attention(query, key, value, bias_of(visible), None, 0.2, 0.0)
    for rows in (1, 4, 5, 17):
        some = bias_of(visible[:rows])
        assert torch.equal(
            masked_attention(query[:, :, :rows], key, value, some, None, 0.2, 0.0), whole[:, :rows]
        )
    key[:, :, 150:], value[:, :, 150:] = 1e30, -1e30
    assert torch.equal(masked_attention(query, key, value, bias_of(visible), None, 0.2, 0.0), whole)


def test_a_mean_of_equal_values_is_that_value(kernel):
    """All weights but one are 0.5019, which bfloat16 rounds to 0.5."""
    query, key = torch.ones(1, 1, 1, 2), -torch.ones(1, 1, 77, 2)
    key[:, :, 0] = 0
    value = torch.full((1, 1, 77, 16), 1.9921875)
    given = (one.to(BRAIN) for one in (query, key, value))
    got = masked_attention(*given, torch.zeros(1, 77), None, -math.log(0.5019) / 2, 0.0)
    assert (got == 1.9921875).all()


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_rows_of_a_cache_and_heads_behind_one_another(dtype):
    query, key, value, visible = inputs(3, dtype, 2, 2, 4, 40, 16, 16)
    expected = masked_attention(query, key, value, bias_of(visible), None, 0.25, 0.0)
    cache = torch.randn(2, 1, 2, 64, 16).to(dtype)
    cache[0, :, :, :40], cache[1, :, :, :40] = key, value
    across = query.transpose(1, 2).contiguous().transpose(1, 2)
    odd = torch.nn.functional.pad(key, (0, 1))[..., :16]
    wide = torch.stack([key, -key], dim=-1)[..., 0]
    for mine in (cache[0, :, :, :40], odd, wide):
        got = masked_attention(across, mine, cache[1, :, :, :40], bias_of(visible), None, 0.25, 0.0)
        assert torch.equal(got, expected)


def test_the_operation_is_what_the_compiler_is_told():
    query, key, value, visible = inputs(4, BRAIN, 2, 2, 4, 40, 16, 8)
    for sinks in (None, torch.randn(4)):
        torch.library.opcheck(
            torch.ops.treespec.masked_attention.default,
            (query, key, value, bias_of(visible), sinks, 0.25, 1.0),
        )


def test_what_does_not_fit_together_is_refused():
    query, key, value, visible = inputs(5, SINGLE, 2, 2, 4, 40, 15, 8)
    bias, sinks = bias_of(visible), torch.randn(4)
    brain = [one.to(BRAIN) for one in (query, key, value)]
    for some in [
        (query[:, :3], key, value, bias, None),
        (query.expand(2, -1, -1, -1), key, value, bias, None),
        (query, key[:, :, :39], value, bias, None),
        (query, key, value, bias[:, :39], None),
        (query, key, value, bias.double(), None),
        (query, key, value, bias, sinks[:3]),
        (query, key, value.to(BRAIN), bias, None),
        (query.double(), key.double(), value.double(), bias, None),
        (*brain, bias, None),  # an odd dimension
    ]:
        with pytest.raises(ValueError, match="cannot attend to keys"):
            masked_attention(*some, 0.25, 0.0)


def test_compiled_code_calls_the_kernel():
    """Rows of a cache, a query that is not contiguous, sinks and a softcap, in bfloat16."""
    query, key, value, visible = inputs(6, BRAIN, 2, 2, 4, 40, 16, 8)
    bias, sinks = bias_of(visible), torch.randn(4)

    def function(across, cache, value, bias, sinks):
        key = cache[:, :, :40]
        return torch.ops.treespec.masked_attention(
            across.transpose(1, 2), key, value, bias, sinks, 0.25, 2.0
        ).transpose(1, 2)

    given = (query.transpose(1, 2).contiguous(), torch.cat([key, key], 2), value, bias, sinks)
    run = torch.compile(function, fullgraph=True, options={"cpp_wrapper": True} | calls())
    with torch.inference_mode():
        expected = masked_attention(query, key, value, bias, sinks, 0.25, 2.0).transpose(1, 2)
        assert torch.equal(run(*given), expected)
    with pytest.raises(Exception, match="cannot attend to keys"):  # refused while it is compiled
        run(*given[:3], bias.to(BRAIN), sinks)


@pytest.mark.parametrize(("softcap", "sunk"), [(None, False), (2.0, True)])
def test_torch_attends_for_numbers_that_the_kernel_does_not_know(softcap, sunk):
    """Both implementations of a compiled pass, for float64 and float32, outside of a compiled pass."""
    query, key, value, _ = inputs(7, SINGLE, 2, 2, 3, 9, 16, 16)
    place, tree = torch.arange(3), tree_arrays((-1, 0, 0))
    seen = Seen(tree, place, torch.arange(9) - 6, torch.tensor(6))
    sinks = torch.randn(4) if sunk else None
    how = {"scale": None, "softcap": softcap, "window": 5, "sinks": sinks}
    attend = MaskedAttention(seen)
    single = attend(nn.Module(), query, key, value, None, **how)
    wide = attend(nn.Module(), *(one.double() for one in (query, key, value)), None, **how)
    assert (single.dtype, wide.dtype) == (SINGLE, torch.float64)
    torch.testing.assert_close(single.double(), wide, rtol=0, atol=1e-5)
