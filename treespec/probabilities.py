"""What counts as a row of probabilities, and how far from 1 rounding may take its sum.

One look at a row is two passes over it (its sum and its least number), a fifth of what the softmax costs
that made it. So rules look at the rows that they visit, each once, and not at those that `Sampling` made.
"""

from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from treespec.door import shown, without_numbers
from treespec.errors import NotADistribution

__all__ = ["no_distributions", "require_distribution", "tolerance"]

LEAST_TOLERANCE = 1e-3
"""Least tolerance: numbers written by hand (0.333, 0.333, 0.333), and long softmaxes in float32."""

MOST_VALUES_SUMMED_BY_PYTHON = 256
"""Rows up to this length are summed by Python: a call of torch costs more than that."""


@lru_cache(maxsize=256)
def tolerance(dtype: torch.dtype, vocabulary: int) -> float:
    """How far the sum of a row of probabilities may be from 1.

    With u the unit roundoff (`eps / 2`), rounding each probability moves the sum by u at most, in relation
    to 1, and dividing by a total that was itself rounded to the dtype by u more: `eps` together. Numbers
    below the normal range are off by half of the least one each, which counts in float16: V 2^-25. In
    float32 the total of V terms, added up in the 16 lanes of a CPU or the more of a GPU, is off by V u / 16
    at worst: 7.5e-4 for V = 200,000, which the floor of 1e-3 holds (measured: 2e-6). For V = 200,000 this
    is 1e-3 in float32 and float64, 7.8e-3 in bfloat16 and 7e-3 in float16.

    Args:
        dtype: of the row.
        vocabulary: its length V.
    """
    kind = torch.finfo(dtype)
    return max(LEAST_TOLERANCE, kind.eps + vocabulary * kind.smallest_normal * kind.eps / 2)


def require_distribution(row: Any, name: str) -> None:
    """Refuse what is no row of probabilities: other kinds of things, NaN, negative numbers, a wrong sum.

    Args:
        row: what was given.
        name: what it is, for the message.

    Raises:
        NotADistribution: naming the row, and the token and value that are wrong, or the sum.
    """
    if not isinstance(row, Tensor):
        raise NotADistribution(
            f"{name} is no distribution: {shown(row)} is a {type(row).__name__}, but must be a tensor of "
            "probabilities"
        )
    if (why := without_numbers(row)) is not None:
        raise NotADistribution(f"{name} is no distribution: it {why}")
    size = row.shape[0] if row.ndim == 1 else 0  # `len` of a tensor takes ten times as long
    if not size or not row.is_floating_point():
        raise NotADistribution(
            f"{name} is no distribution: {shown(row)}, but must be floating numbers of the shape [V], one "
            "for each of at least one token"
        )
    if size <= MOST_VALUES_SUMMED_BY_PYTHON:
        numbers = row.tolist()
        total, least = sum(numbers), min(numbers)
    else:
        total, least = _sums(row).item(), row.amin().item()
    if not (least >= 0 and abs(total - 1) <= tolerance(row.dtype, size)):
        raise NotADistribution(f"{name} is no distribution: {_complaint(row, total)}")


def no_distributions(rows: Float[Tensor, "R V"]) -> Bool[Tensor, "R"]:
    """Which rows `require_distribution` refuses; on a device this does not wait for it."""
    close = (_sums(rows) - 1).abs() <= tolerance(rows.dtype, rows.shape[1])
    return ~(close & (rows.amin(-1) >= 0))


def _sums(rows: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows"]:
    """Half precision is added up in float32."""
    return rows.sum(-1, dtype=torch.float32 if rows.dtype.itemsize < 4 else None)


def _complaint(row: Float[Tensor, "V"], total: Any) -> str:
    """What is wrong with it: the first number that is none, or the sum."""
    for token, value in enumerate(row.tolist()):
        if not 0 <= value < float("inf"):
            return f"token {token} has the probability {float(value):g}"
    return (
        f"its {len(row)} probabilities sum to {float(total):.6g}, but must sum to 1: give what "
        "`Sampling` makes of logits, or divide the row by its sum"
    )
