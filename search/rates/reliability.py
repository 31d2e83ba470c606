"""Reliability curves: how far predicted probabilities are from observed frequencies."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.door import integer
from treespec.search.errors import InvalidCalibration
from treespec.search.intervals import require_level, wilson


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability curve: mean prediction and measured acceptance in bins.

    Args:
        edges: `[bins + 1]`; bin i holds predictions from `edges[i]` to `edges[i + 1]`.
        counts: number of predictions in each bin; no bin is empty.
        predicted: mean prediction of each bin.
        measured: share of each bin that was accepted.
        low: lower bounds of the shares, by Wilson's interval, as if predictions were independent.
        high: upper bounds.
    """

    edges: Float[np.ndarray, "bins_1"]
    counts: Int[np.ndarray, "bins"]
    predicted: Float[np.ndarray, "bins"]
    measured: Float[np.ndarray, "bins"]
    low: Float[np.ndarray, "bins"]
    high: Float[np.ndarray, "bins"]

    @property
    def expected_error(self) -> float:
        """Expected calibration error (Naeini et al. 2015; Guo et al., arXiv:1706.04599, equation 3).

        The sum over bins of their share of predictions times |measured - mean predicted|.
        """
        distance = np.abs(self.measured - self.predicted)
        return float((self.counts / self.counts.sum() * distance).sum())


def reliability(
    predicted: Any, accepted: Any, *, bins: int = 10, level: float = 0.95
) -> Reliability:
    """Compute the reliability curve of measured acceptance against predicted probability.

    Bins hold (nearly) equally many predictions; equal predictions share a bin, so there may be fewer bins.

    Args:
        predicted: `[n]`, in [0, 1].
        accepted: `[n]`, outcomes, true or false, or their exact probabilities.
        bins: maximum number of bins.
        level: confidence level of the intervals.

    Raises:
        InvalidCalibration: if there are no predictions, or they are not probabilities.
        InvalidLimit: if `level` is not between 0 and 1.

    Example:
        >>> curve = reliability([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0], bins=2)
        >>> curve.measured.tolist(), round(curve.expected_error, 6)
        ([0.0, 0.5], 0.25)
    """
    x, y = pairs(predicted, accepted)
    require_level(level)
    bins = integer("bins", bins, 1, InvalidCalibration)
    _, inverse, equal = np.unique(x, return_inverse=True, return_counts=True)
    below = np.cumsum(equal) - equal
    place = (below * bins // len(x))[inverse]
    counts = np.bincount(place, minlength=bins)
    filled = counts > 0
    total, hits = (np.bincount(place, values, minlength=bins)[filled] for values in (x, y))
    counts = counts[filled]
    smallest = np.full(bins, np.inf)
    np.minimum.at(smallest, place, x)
    low, high = wilson(hits, counts.astype(np.float64), level)
    edges = np.append(smallest[filled], x.max())
    return Reliability(edges, counts, total / counts, hits / counts, low, high)


def pairs(predicted: Any, accepted: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and outcomes as float64 vectors.

    Raises:
        InvalidCalibration: if they are empty, differ in length, or hold values that are not probabilities.
    """
    arrays = []
    for name, values in (("predicted", predicted), ("accepted", accepted)):
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise InvalidCalibration(f"{name} must hold numbers, in rows of equal length") from None
        if array.ndim != 1 or not len(array):
            raise InvalidCalibration(f"{name} must be a vector with at least one number")
        if not ((array >= 0) & (array <= 1 + 1e-6)).all():  # refuses NaN, too
            raise InvalidCalibration(f"{name} must hold probabilities in [0, 1]")
        arrays.append(np.minimum(array, 1.0))
    if len(arrays[0]) != len(arrays[1]):
        raise InvalidCalibration(f"{len(arrays[0])} predictions, but {len(arrays[1])} outcomes")
    return arrays[0], arrays[1]
