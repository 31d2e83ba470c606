"""Attention of few rows to many keys under one additive mask, by `masked_attention.cpp`."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from treespec.kernels.build import held_call

__all__ = ["can_attend", "kernel_call", "masked_attention"]


def can_attend(key_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernel knows such keys: of float32, or of an even dimension in bfloat16."""
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
    """Softmax of masked scores times values, all sums in float32.

    Where pairs of bfloat16 are multiplied (`blocks.hpp`), weights are rounded before they multiply values,
    and their sum is of what they were rounded to, so that a mean of equal values is that value.

    Args:
        query: `[1, Hq, T, D]`; `Hq / Hkv` heads that follow each other share keys and values.
        key: `[1, Hkv, S, D]`, of the same dtype, float32 or bfloat16 with an even D.
        value: `[1, Hkv, S, Dv]`, likewise.
        bias: added to scores, `[T, S]` in float32, finite: each row sees a key.
        sinks: of each query head one more score, whose value is 0: `[Hq]` in float32; None for none.
        scale: of the scores.
        softcap: they are bounded to `softcap * tanh(score / softcap)` before the bias; 0 for no bound.

    Returns:
        `[1, T, Hq, Dv]`.

    Raises:
        ValueError: if sizes or dtypes do not fit together.
    """
    _, heads, rows, dim = query.shape
    _, shared, keys, value_dim = value.shape
    fits = query.shape[0] == key.shape[0] == value.shape[0] == 1
    fits = fits and key.shape == (1, shared, keys, dim) and heads % shared == 0 and keys > 0
    fits = fits and bias.shape == (rows, keys) and (sinks is None or sinks.shape == (heads,))
    fits = fits and _of_fitting_dtypes(query, key, value, bias, sinks)
    if not (fits and can_attend(dim, query.dtype)):
        raise ValueError(_refused(query, key, value, bias, sinks))
    out = query.new_empty(1, rows, heads, value_dim)
    sinks = None if sinks is None else sinks.contiguous()
    query, key, value = (_rows(one) for one in (query, key, value))
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
    if not _of_fitting_dtypes(query, key, value, bias, sinks):
        raise ValueError(_refused(query, key, value, bias, sinks))
    return query.new_empty(1, rows, heads, value.shape[3])


def _of_fitting_dtypes(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor | None
) -> bool:
    """Which compiled code is asked while it is made; sizes are the business of who compiles it."""
    kinds = {one.dtype for one in (query, key, value)}
    single = bias.dtype == torch.float32 and (sinks is None or sinks.dtype == torch.float32)
    return single and kinds in ({torch.float32}, {torch.bfloat16})


def _refused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor | None) -> str:
    beside = "" if sinks is None else f" beside sinks {_said(sinks)}"
    return (
        f"queries {_said(query)} cannot attend to keys {_said(key)} and values {_said(value)} under a mask "
        f"{_said(bias)}{beside}"
    )


def _said(one: Tensor) -> str:
    return f"{tuple(one.shape)} in {one.dtype}"


def _rows(one: Tensor) -> Tensor:
    """With numbers of a row behind one another, and in bfloat16 rows at even places."""
    even = one.stride(3) == 1 and all(one.stride(i) % 2 == 0 for i in (1, 2))
    return one if even else one.contiguous()


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
    """The kernel's call on the tensors of `masked_attention`, which it holds; see `held_call`.

    The result goes to `out`, `[1, T, Hq, Dv]`.
    """
    _, heads, rows, dim = query.shape
    _, shared, keys, value_dim = value.shape
    sizes = (heads, shared, rows, keys, dim, value_dim)
    strides = [one.stride(i) for one in (query, key, value) for i in (1, 2)]
    return held_call(
        "treespec_masked_attention",
        (query, key, value, bias, sinks, out),
        *((ctypes.c_int64 * 6)(*some) for some in (sizes, strides)),
        *map(ctypes.c_double, (scale, softcap)),
        ctypes.c_int32(out.dtype == torch.bfloat16),
    )
