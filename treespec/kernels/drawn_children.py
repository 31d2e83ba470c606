"""Children of a level of a drafted tree, drawn from its logits or the best, by `drawn_children.cpp`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.kernels.build import held_call

__all__ = ["DTYPES", "best_children", "drawn_children"]

DTYPES = (torch.float32, torch.bfloat16)
"""Of the logits that the kernel knows."""


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

    The same as `Sampling(temperature)` and `TorchCoins.draw_many` with the same uniforms, but for rounding:
    masses are summed in float64 in another order.

    Args:
        logits: `[T, V]` on the CPU, of `DTYPES`, the numbers of a row behind one another. Of such that are
            not finite some tokens come back.
        plan: `[3, T]`, of each row how many children it gets, and where its first uniform and its first
            child stand; contiguous.
        uniforms: one for each child.
        temperature: above 0.
        distinct: whether children are drawn without replacement.
        probs: `[T, V]` in float32, contiguous, written.
        extremes: the least and the greatest logit, `[2]` in float32, written; NaN if one is.

    Returns:
        `[C]`, the children.

    Raises:
        ValueError: if sizes or dtypes do not fit together.
    """
    _require(logits, extremes)
    rows, width = logits.shape
    if not (_is(probs, torch.float32, logits.shape) and _is(plan, torch.long, (3, rows))):
        raise ValueError(f"{tuple(probs.shape)} in {probs.dtype} for {tuple(logits.shape)} logits")
    children = torch.empty(len(uniforms), dtype=torch.long, device="cpu")
    given = torch.tensor(uniforms, dtype=torch.float64, device="cpu")
    held_call(
        "treespec_drawn_children",
        (logits, plan, given, probs, children, extremes),
        *map(ctypes.c_int64, (logits.stride(0), rows, width)),
        ctypes.c_double(temperature),
        ctypes.c_int32(distinct),
        ctypes.c_int32(logits.dtype == torch.bfloat16),
    )()
    return children


def best_children(logits: Tensor, extremes: Tensor) -> Tensor:
    """The best token of each row, of equal ones the first, as `treespec.distributions.best_token` has it.

    Args:
        logits: as for `drawn_children`.
        extremes: likewise.

    Returns:
        `[T]`, a child of each row.

    Raises:
        ValueError: if sizes or dtypes do not fit together.
    """
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
            f"no children of logits {tuple(logits.shape)} in {logits.dtype} with strides "
            f"{logits.stride()}, and extremes {tuple(extremes.shape)} in {extremes.dtype}"
        )


def _is(one: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    return one.dtype == dtype and one.shape == shape and one.is_contiguous() and one.is_cpu
