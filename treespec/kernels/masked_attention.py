"""Attention of few rows to many keys under one additive mask (`masked_attention.cpp`)."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from treespec.kernels.build import held_call


def can_attend(key_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernel supports such keys: float32, or bfloat16 with an even dimension."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and key_dim % 2 == 0)


@torch.library.custom_op("treespec::masked_attention", mutates_args=(), device_types="cpu")
def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
) -> Tensor:
    """Softmax of masked scores times values, with all sums in float32.

    If pairs of bfloat16 are multiplied (`blocks.hpp`), weights are rounded before they multiply values, and
    their sum is taken after rounding, so that the mean of equal values is exactly that value.

    `query`: `[1, Hq, T, D]`; each group of `Hq / Hkv` consecutive heads shares keys and values. `key`: `[1,
    Hkv, S, D]`, of the same dtype: float32, or bfloat16 with an even D. `value`: `[1, Hkv, S, Dv]`, of the
    same dtype. `bias`: added to scores, `[T, S]` in float32, finite; each row must attend to at least one
    key. `sinks`: for each query head a further score, whose value is 0: `[Hq]` in float32; None for none.
    `softcap`: bounds scores to `softcap * tanh(score / softcap)` before the bias; 0 for no bound.
    """
    _, heads, rows, dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    fits = query.shape[0] == key.shape[0] == value.shape[0] == 1
    fits = fits and key.shape == (1, kv_heads, keys, dim) and heads % kv_heads == 0 and keys > 0
    fits = fits and bias.shape == (rows, keys) and (sinks is None or sinks.shape == (heads,))
    fits = fits and _dtypes_match(query, key, value, bias, sinks)
    if not (fits and can_attend(dim, query.dtype)):
        raise ValueError(_refusal(query, key, value, bias, sinks))
    out = query.new_empty(1, rows, heads, value_dim)
    sinks = None if sinks is None else sinks.contiguous()
    query, key, value = (_rows(x) for x in (query, key, value))
    kernel_call(out, query, key, value, bias.contiguous(), sinks, scale, softcap)()
    return out


@masked_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
) -> Tensor:
    _, heads, rows, _ = query.shape
    if not _dtypes_match(query, key, value, bias, sinks):
        raise ValueError(_refusal(query, key, value, bias, sinks))
    return query.new_empty(1, rows, heads, value.shape[3])


def _dtypes_match(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor | None
) -> bool:
    """Check dtypes, also while code is compiled; for sizes in compiled code the caller is responsible."""
    dtypes = {x.dtype for x in (query, key, value)}
    single = bias.dtype == torch.float32 and (sinks is None or sinks.dtype == torch.float32)
    return single and dtypes in ({torch.float32}, {torch.bfloat16})


def _refusal(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor | None) -> str:
    with_sinks = "" if sinks is None else f" with sinks {_described(sinks)}"
    return (
        f"queries {_described(query)} cannot attend to keys {_described(key)} and values "
        f"{_described(value)} under a mask {_described(bias)}{with_sinks}"
    )


def _described(x: Tensor) -> str:
    return f"{tuple(x.shape)} in {x.dtype}"


def _rows(x: Tensor) -> Tensor:
    """The tensor with contiguous rows that begin at even offsets, as bfloat16 pairs need them."""
    aligned = x.stride(3) == 1 and all(x.stride(i) % 2 == 0 for i in (1, 2))
    return x if aligned else x.contiguous()


def kernel_call(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
) -> Callable[[], None]:
    """A call of the kernel on the tensors of `masked_attention`, kept alive; see `held_call`.

    The result is written to `out`, `[1, T, Hq, Dv]`.
    """
    _, heads, rows, dim = query.shape
    _, kv_heads, keys, value_dim = value.shape
    sizes = (heads, kv_heads, rows, keys, dim, value_dim)
    strides = [x.stride(i) for x in (query, key, value) for i in (1, 2)]
    return held_call(
        "treespec_masked_attention",
        (query, key, value, bias, sinks, out),
        *((ctypes.c_int64 * 6)(*integers) for integers in (sizes, strides)),
        *map(ctypes.c_double, (scale, softcap)),
        ctypes.c_int32(out.dtype == torch.bfloat16),
    )
