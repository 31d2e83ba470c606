"""How far predicted probabilities are from what happened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from search.errors import InvalidCalibration
from search.intervals import require_level, wilson

__all__ = ["Reliability", "Spacing", "pairs", "reliability"]

Spacing = Literal["count", "width"]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability curve: predictions in bins, beside what was measured there.

    Args:
        edges: `[bins + 1]`; bin i holds predictions from `edges[i]` to `edges[i + 1]`.
        counts: predictions in each bin, none of them empty.
        predicted: mean prediction of each bin.
        measured: share that was accepted.
        low: lower bounds of the shares, by Wilson's interval, as if predictions were independent.
        high: upper bounds.
        by: the curves of the groups, if there were some.
    """

    edges: Float[np.ndarray, "bins_1"]
    counts: Int[np.ndarray, "bins"]
    predicted: Float[np.ndarray, "bins"]
    measured: Float[np.ndarray, "bins"]
    low: Float[np.ndarray, "bins"]
    high: Float[np.ndarray, "bins"]
    by: Mapping[int, "Reliability"] = field(default_factory=dict)

    @property
    def expected_error(self) -> float:
        """Expected calibration error (Naeini et al. 2015; Guo et al., arXiv:1706.04599, equation 3).

        The sum over bins of their share of predictions times |measured - mean predicted|.
        """
        weights = self.counts / self.counts.sum()
        return float((weights * np.abs(self.measured - self.predicted)).sum())


def reliability(
    predicted: Any,
    accepted: Any,
    *,
    bins: int = 10,
    spacing: Spacing = "count",
    by: Any = None,
    level: float = 0.95,
) -> Reliability:
    """Measured acceptance against predicted probability.

    Args:
        predicted: `[n]`, in [0, 1].
        accepted: `[n]`, what happened: true or false, or its exact probability.
        bins: at most so many.
        spacing: "count", bins with (nearly) equally many predictions; equal predictions share a bin, so
            that there may be fewer. "width", bins of equal width; empty ones are left out.
        by: `[n]` integers, such as depths or ranks: a curve for each of them too.
        level: of confidence of the intervals.

    Raises:
        InvalidCalibration: if there are no predictions, or they are no probabilities.
        InvalidLimit: if `level` is none.

    Example:
        >>> curve = reliability([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0], bins=2)
        >>> curve.measured.tolist(), round(curve.expected_error, 6)
        ([0.0, 0.5], 0.25)
    """
    x, y = pairs(predicted, accepted)
    require_level(level)
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise InvalidCalibration(f"bins = {bins!r}, but must be an integer of at least 1")
    if spacing not in ("count", "width"):
        raise InvalidCalibration(f"spacing = {spacing!r}, but must be 'count' or 'width'")
    groups: dict[int, Reliability] = {}
    if by is not None:
        labels = np.asarray(by)
        if labels.shape != x.shape or labels.dtype.kind not in "iu":
            raise InvalidCalibration(f"by must hold {len(x)} integers, one for each prediction")
        for label in np.unique(labels):
            mine = labels == label
            groups[int(label)] = _curve(x[mine], y[mine], bins, spacing, level, {})
    return _curve(x, y, bins, spacing, level, groups)


def pairs(predicted: Any, accepted: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and outcomes as float64 vectors.

    Raises:
        InvalidCalibration: if they are empty, differ in length, or hold what is no probability.
    """
    found = []
    for name, values in (("predicted", predicted), ("accepted", accepted)):
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidCalibration(f"{name} must hold numbers: {error}") from None
        if array.ndim != 1 or not len(array):
            raise InvalidCalibration(f"{name} must be a vector with at least one number")
        if not ((array >= 0) & (array <= 1 + 1e-6)).all():
            raise InvalidCalibration(f"{name} holds what is no probability in [0, 1]")
        found.append(np.minimum(array, 1.0))
    if len(found[0]) != len(found[1]):
        raise InvalidCalibration(f"{len(found[0])} predictions, but {len(found[1])} outcomes")
    return found[0], found[1]


def _curve(
    x: np.ndarray, y: np.ndarray, bins: int, spacing: str, level: float, by: dict[int, Reliability]
) -> Reliability:
    if spacing == "width":
        place = np.minimum((x * bins).astype(np.int64), bins - 1)
    else:
        _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        below = np.cumsum(counts) - counts
        place = (below * bins // len(x))[inverse]
    counts = np.bincount(place, minlength=bins)
    some = counts > 0
    total, hits = (np.bincount(place, v, minlength=bins)[some] for v in (x, y))
    first = np.full(bins, np.inf)
    np.minimum.at(first, place, x)
    starts = np.arange(bins)[some] / bins if spacing == "width" else first[some]
    end = (np.flatnonzero(some)[-1] + 1) / bins if spacing == "width" else x.max()
    low, high = wilson(hits, counts[some].astype(np.float64), level)
    return Reliability(
        np.append(starts, end),
        counts[some], total / counts[some], hits / counts[some], low, high, by,
    )  # fmt: skip
