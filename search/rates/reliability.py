"""Reliability curves: how far predicted probabilities are from observed frequencies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from treespec.door import integer, shown
from treespec.search.errors import InvalidCalibration
from treespec.search.intervals import require_level, wilson

Spacing = Literal["count", "width"]


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
        by: the curves of the groups, if `by` was given.
        weights: sum of the weights in each bin; None if all predictions have equal weight.
    """

    edges: Float[np.ndarray, "bins_1"]
    counts: Int[np.ndarray, "bins"]
    predicted: Float[np.ndarray, "bins"]
    measured: Float[np.ndarray, "bins"]
    low: Float[np.ndarray, "bins"]
    high: Float[np.ndarray, "bins"]
    by: Mapping[int, "Reliability"] = field(default_factory=dict)
    weights: Float[np.ndarray, "bins"] | None = None

    @property
    def expected_error(self) -> float:
        """Expected calibration error (Naeini et al. 2015; Guo et al., arXiv:1706.04599, equation 3).

        The sum over bins of their share of predictions times |measured - mean predicted|.
        """
        weights = self.counts if self.weights is None else self.weights
        return float((weights / weights.sum() * np.abs(self.measured - self.predicted)).sum())


def reliability(
    predicted: Any,
    accepted: Any,
    *,
    bins: int = 10,
    spacing: Spacing = "count",
    by: Any = None,
    weights: Any = None,
    level: float = 0.95,
) -> Reliability:
    """Compute the reliability curve of measured acceptance against predicted probability.

    Args:
        predicted: `[n]`, in [0, 1].
        accepted: `[n]`, outcomes, true or false, or their exact probabilities.
        bins: maximum number of bins.
        spacing: "count": bins with (nearly) equally many predictions; equal predictions share a bin, so
            there may be fewer bins. "width": bins of equal width; empty ones are left out.
        by: `[n]` integers, such as depths or ranks; adds a curve for each value.
        weights: `[n]`, how many predictions each one stands for, such as `CalibrationData.weight`; 1 by
            default. Intervals are those of (sum)^2 / sum of squares independent predictions.
        level: confidence level of the intervals.

    Raises:
        InvalidCalibration: if there are no predictions, or they are not probabilities; or if a weight is
            not a finite number above 0.
        InvalidLimit: if `level` is not between 0 and 1.

    Example:
        >>> curve = reliability([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0], bins=2)
        >>> curve.measured.tolist(), round(curve.expected_error, 6)
        ([0.0, 0.5], 0.25)
    """
    x, y = pairs(predicted, accepted)
    require_level(level)
    bins = integer("bins", bins, 1, InvalidCalibration)
    w = None if weights is None else _weights(weights, len(x))
    if spacing not in ("count", "width"):
        raise InvalidCalibration(f"spacing = {shown(spacing)}, but must be 'count' or 'width'")
    groups: dict[int, Reliability] = {}
    if by is not None:
        labels = np.asarray(by)
        if labels.shape != x.shape or labels.dtype.kind not in "iu":
            raise InvalidCalibration(f"by must hold {len(x)} integers, one for each prediction")
        for label in np.unique(labels):
            in_group = labels == label
            group_w = None if w is None else w[in_group]
            groups[int(label)] = _curve(x[in_group], y[in_group], group_w, bins, spacing, level, {})
    return _curve(x, y, w, bins, spacing, level, groups)


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
        if np.isnan(array).any():
            raise InvalidCalibration(
                f"{name} must hold probabilities, but contains NaN, which marks unknown values (of paths, "
                "below depth 0 at temperature 0)"
            )
        if not ((array >= 0) & (array <= 1 + 1e-6)).all():
            raise InvalidCalibration(f"{name} must hold probabilities in [0, 1]")
        arrays.append(np.minimum(array, 1.0))
    if len(arrays[0]) != len(arrays[1]):
        raise InvalidCalibration(f"{len(arrays[0])} predictions, but {len(arrays[1])} outcomes")
    return arrays[0], arrays[1]


def _weights(values: Any, count: int) -> np.ndarray:
    """Weights as a float64 vector."""
    weights = np.asarray(values, dtype=np.float64)
    if weights.shape != (count,):
        raise InvalidCalibration(f"weights must hold {count} numbers, one for each prediction")
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise InvalidCalibration("weights must be finite numbers above 0")
    return weights


def _curve(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None,
    bins: int,
    spacing: str,
    level: float,
    by: dict[int, Reliability],
) -> Reliability:
    if spacing == "width":
        place = np.minimum((x * bins).astype(np.int64), bins - 1)
    else:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        below = np.cumsum(counts) - counts
        place = (below * bins // len(x))[inverse]
    counts = np.bincount(place, minlength=bins)
    filled = counts > 0
    w = np.ones(len(x)) if weights is None else weights
    weight, total, hits, square = (
        np.bincount(place, v, minlength=bins)[filled] for v in (w, w * x, w * y, w * w)
    )
    smallest = np.full(bins, np.inf)
    np.minimum.at(smallest, place, x)
    starts = np.arange(bins)[filled] / bins if spacing == "width" else smallest[filled]
    end = (np.flatnonzero(filled)[-1] + 1) / bins if spacing == "width" else x.max()
    measured, effective = hits / weight, weight**2 / square
    low, high = wilson(measured * effective, effective, level)
    return Reliability(
        np.append(starts, end),
        counts[filled], total / weight, measured, low, high, by, None if weights is None else weight,
    )  # fmt: skip
