"""Children for a level of a drafted tree, drawn from logits or the best tokens (`drawn_children.cpp`)."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.kernels.build import held_call

DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of logits that the kernel supports."""


def drawn_children(
    logits: Tensor,
    plan: Tensor,
    uniforms: Sequence[float],
    temperature: float,
    distinct: bool,
    probs: Tensor,
    extremes: Tensor,
) -> Tensor:
    """Softmax of rows at a temperature, and draws from them by inverse CDF.

    Equal to `Sampling(temperature)` and `TorchCoins.draw_many` with the same uniforms, up to rounding:
    masses are summed in float64 in another order.

    `logits`: `[T, V]` on the CPU, of `DTYPES`, each row contiguous. Rows that are not finite give arbitrary
    tokens; check `extremes`. `plan`: `[3, T]`, contiguous; for each row, its number of children and the
    indices of its first uniform and its first child. `distinct`: whether children are drawn without
    replacement. `probs`: output, `[T, V]` in float32, contiguous: the probabilities. `extremes`: output,
    `[2]` in float32: the least and the greatest logit; NaN if any logit is NaN.
    """
    _require(logits, extremes)
    rows, width = logits.shape
    if not (_is(probs, torch.float32, logits.shape) and _is(plan, torch.long, (3, rows))):
        raise ValueError(
            f"probs {tuple(probs.shape)} in {probs.dtype} and plan {tuple(plan.shape)} in {plan.dtype} do "
            f"not match logits {tuple(logits.shape)}"
        )
    children = torch.empty(len(uniforms), dtype=torch.long, device="cpu")
    uniform_tensor = torch.tensor(uniforms, dtype=torch.float64, device="cpu")
    held_call(
        "treespec_drawn_children",
        (logits, plan, uniform_tensor, probs, children, extremes),
        *map(ctypes.c_int64, (logits.stride(0), rows, width)),
        ctypes.c_double(temperature),
        ctypes.c_int32(distinct),
        ctypes.c_int32(logits.dtype == torch.bfloat16),
    )()
    return children


def best_children(logits: Tensor, extremes: Tensor) -> Tensor:
    """The best token of each row; the first of equals, as `best_token` decides."""
    _require(logits, extremes)
    rows, width = logits.shape
    children = torch.empty(rows, dtype=torch.long, device="cpu")
    held_call(
        "treespec_best_children",
        (logits, children, extremes),
        *map(ctypes.c_int64, (logits.stride(0), rows, width)),
        ctypes.c_int32(logits.dtype == torch.bfloat16),
    )()
    return children


def _require(logits: Tensor, extremes: Tensor) -> None:
    known = logits.dtype in DTYPES and logits.is_cpu and logits.ndim == 2 and logits.numel() > 0
    if not (known and logits.stride(1) == 1 and _is(extremes, torch.float32, (2,))):
        raise ValueError(
            f"cannot draw children from logits {tuple(logits.shape)} in {logits.dtype} with strides "
            f"{logits.stride()}, and extremes {tuple(extremes.shape)} in {extremes.dtype}"
        )


def _is(x: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    return x.dtype == dtype and x.shape == shape and x.is_contiguous() and x.is_cpu
