"""What counts as a row of probabilities, and how far from 1 rounding may take its sum.

Checking a row takes two passes over it (sum and minimum), a fifth of the cost of the softmax that made it.
So rules check each row that they visit once, and never check rows that `Sampling` made.
"""

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import shown
from treespec.errors import NotADistribution

LEAST_TOLERANCE = 1e-3
"""Smallest tolerance, for hand-written numbers (0.333, 0.333, 0.333) and long softmaxes in float32."""

MOST_VALUES_SUMMED_BY_PYTHON = 256
"""Rows up to this length are summed in Python: for them a torch call costs more."""


@lru_cache(maxsize=256)
def tolerance(dtype: torch.dtype, vocabulary: int) -> float:
    """How far the sum of a row of probabilities may be from 1.

    With u the unit roundoff (`eps / 2`), rounding each probability moves the sum by at most u relative to
    1, and dividing by a total that was itself rounded to the dtype by another u: `eps` together. Each
    number below the normal range is off by up to half the smallest subnormal, which matters in float16:
    V 2^-25 in all. In float32 the sum of V terms, accumulated in the 16 lanes of a CPU or the more of a
    GPU, is off by at most V u / 16: 7.5e-4 for V = 200,000, below the floor of 1e-3 (measured: 2e-6). For
    V = 200,000 the tolerance is 1e-3 in float32 and float64, 7.8e-3 in bfloat16 and 7e-3 in float16.
    """
    limits = torch.finfo(dtype)
    return max(LEAST_TOLERANCE, limits.eps + vocabulary * limits.smallest_normal * limits.eps / 2)


def require_distribution(row: Any, name: str) -> None:
    """Refuse anything but a row of probabilities: other types, NaN, negative numbers, a wrong sum.

    Args:
        row: the given row.
        name: what the row is, for the message.

    Raises:
        NotADistribution: naming the row, and the wrong token and value, or the sum.
    """
    if not isinstance(row, Tensor):
        raise NotADistribution(
            f"{name} is not a distribution: {shown(row)} is a {type(row).__name__}, but must be a tensor "
            "of probabilities"
        )
    size = row.shape[0] if row.ndim == 1 else 0  # `len` of a tensor takes ten times as long
    if not size or not row.is_floating_point():
        raise NotADistribution(
            f"{name} is not a distribution: {shown(row)}, but must be floating-point of shape [V], V at "
            "least 1"
        )
    if size <= MOST_VALUES_SUMMED_BY_PYTHON:
        numbers = row.tolist()
        total, least = sum(numbers), min(numbers)
    else:
        total, least = _sums(row).item(), row.amin().item()
    if not (least >= 0 and abs(total - 1) <= tolerance(row.dtype, size)):
        raise NotADistribution(f"{name} is not a distribution: {_complaint(row, total)}")


def no_distributions(rows: Float[Tensor, "R V"]) -> Bool[Tensor, "R"]:
    """Which rows `require_distribution` refuses; does not wait for the device."""
    close = (_sums(rows) - 1).abs() <= tolerance(rows.dtype, rows.shape[1])
    return ~(close & (rows.amin(-1) >= 0))


def _sums(rows: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows"]:
    """The sum of each row, accumulated in float32 for half precision."""
    return rows.sum(-1, dtype=torch.float32 if rows.dtype.itemsize < 4 else None)


def _complaint(row: Float[Tensor, "V"], total: Any) -> str:
    """What is wrong with a row: its first invalid probability, or its sum."""
    for token, value in enumerate(row.tolist()):
        if not 0 <= value < float("inf"):
            return f"token {token} has the probability {float(value):g}"
    return (
        f"its {len(row)} probabilities sum to {float(total):.6g}, but must sum to 1: apply `Sampling` to "
        "the logits, or divide the row by its sum"
    )
