"""Calibration: how far the draft's own probabilities are from acceptance, and a map that corrects them.

A growth policy that ranks nodes by the product of the draft's probabilities does best if these equal the
probabilities of acceptance. `reliability` measures the difference; `fit_calibration` fits a monotone map.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import Field

from treespec.checks import integer, shown
from treespec.errors import Unreadable
from treespec.files import brief
from treespec.reading_models import FirstVersion, Strict, read_model
from treespec.search.errors import InvalidCalibration, InvalidTrace
from treespec.search.intervals import require_level, wilson
from treespec.search.traces.trace import Trace
from treespec.tree import Law

__all__ = [
    "Calibration",
    "CalibrationData",
    "Method",
    "Reliability",
    "calibration_data",
    "fit_calibration",
    "reliability",
]

Method = Literal["isotonic", "temperature"]
"""How a calibration is fitted: a monotone map, or log-odds divided by one number."""

VERSION = 1
SLOPE = 1e-6
"""Share of the identity in an isotonic map, which preserves the arguments' order where the map is flat."""
SHARPEST, FLATTEST = 0.05, 20.0
EDGE = 1e-12
"""Smallest distance to 0 and 1 at which log-odds are computed."""


@dataclass(frozen=True)
class Calibration:
    """A strictly increasing map from a child's draft probability to its probability of acceptance.

    The order of siblings is preserved; that of products along paths may change. Each child is mapped by
    itself, so the mapped probabilities of siblings may sum to more or less than 1.

    Args:
        method: "isotonic" (linear between knots) or "temperature" (log-odds divided by a number).
        xs: the knots' arguments, rising from 0 to 1; empty for a temperature.
        ys: the knots' values.
        temperature: divisor of the log-odds; above 1 it makes probabilities less extreme.

    Raises:
        InvalidCalibration: if the knots are not monotone in [0, 1], or the temperature is not positive.

    Example:
        >>> Calibration("temperature", temperature=2.0)(np.array([0.0, 0.1, 0.5, 1.0])).round(3).tolist()
        [0.0, 0.25, 0.5, 1.0]
    """

    method: str
    xs: tuple[float, ...] = ()
    ys: tuple[float, ...] = ()
    temperature: float | None = None

    def __post_init__(self) -> None:
        """Check that this is a monotone map of [0, 1] into itself."""
        if self.method == "temperature":
            value = self.temperature
            if self.xs or self.ys or not isinstance(value, int | float) or not 0 < value < np.inf:
                raise InvalidCalibration(
                    f"temperature = {brief(value, 60)}, but must be a finite number above 0, without knots"
                )
            return
        if self.method != "isotonic":
            raise InvalidCalibration(
                f"method = {brief(self.method, 60)}, but must be 'isotonic' or 'temperature'"
            )
        xs, ys = _knots(self.xs), _knots(self.ys)
        if (
            self.temperature is not None
            or len(xs) != len(ys)
            or len(xs) < 2
            or (xs[0], xs[-1]) != (0, 1)
            or not ((np.diff(xs) > 0).all() and (np.diff(ys) >= 0).all())
            or not (ys[0] >= 0 and ys[-1] <= 1)
        ):
            raise InvalidCalibration(
                "an isotonic map has at least two knots, which rise from 0 to 1, with values that do not "
                "fall in [0, 1], and no temperature"
            )

    def __call__(self, probs: Any) -> Float[np.ndarray, "*shape"]:
        """The mapped probabilities, in float64, of a number, an array or a CPU tensor of any shape.

        Values outside [0, 1], such as from rounding, are clipped.
        """
        x = np.clip(np.asarray(probs, dtype=np.float64), 0.0, 1.0)
        if self.temperature is not None:
            inner = np.clip(x, EDGE, 1 - EDGE)
            mapped = 1 / (1 + ((1 - inner) / inner) ** (1 / self.temperature))
            return np.where((x == 0) | (x == 1), x, mapped)
        return (1 - SLOPE) * np.interp(x, self.xs, self.ys) + SLOPE * x

    def to_json(self) -> str:
        """The calibration as JSON, with its knots or its temperature."""
        data: dict[str, Any] = {"kind": "calibration", "version": VERSION, "method": self.method}
        if self.temperature is not None:
            data["temperature"] = self.temperature
        else:
            data |= {"xs": list(self.xs), "ys": list(self.ys)}
        return json.dumps(data) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Read JSON that `to_json` wrote.

        Raises:
            InvalidCalibration: if the text is not a valid calibration.
        """
        try:
            file = read_model(_File, text, constants=True)  # NaN and infinity are refused below
        except Unreadable as error:
            raise InvalidCalibration(str(error)) from None
        return cls(file.method, tuple(file.xs), tuple(file.ys), file.temperature)


class _File(Strict):
    kind: Literal["calibration"]
    version: FirstVersion
    method: Any = None
    xs: list[Any] = Field(default_factory=list)
    ys: list[Any] = Field(default_factory=list)
    temperature: Any = None


def fit_calibration(predicted: Any, accepted: Any, method: Method = "isotonic") -> Calibration:
    """Fit a monotone map from predicted probabilities to acceptance.

    "isotonic": least squares among monotone maps (Zadrozny & Elkan 2002), by pooling adjacent violators.
    Ours is linear between the means of the pooled blocks instead of constant on them, runs through (0, 0),
    and keeps the value of the last block up to 1. "temperature": log-odds divided by the temperature of
    maximum likelihood (Guo et al., arXiv:1706.04599, section 4.2, for one class against the others); for
    little data.

    Args:
        predicted: `[n]`, in [0, 1].
        accepted: `[n]`, true or false, or exact probabilities.
        method: kind of map to fit.

    Raises:
        InvalidCalibration: if there is nothing to fit, or the method is unknown.
    """
    x, y = pairs(predicted, accepted)
    if method == "isotonic":
        return _isotonic(x, y)
    if method == "temperature":
        return _temperature(x, y)
    raise InvalidCalibration(f"method = {method!r}, but must be 'isotonic' or 'temperature'")


def _isotonic(x: np.ndarray, y: np.ndarray) -> Calibration:
    from scipy.optimize import isotonic_regression

    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, y) / counts
    fitted = isotonic_regression(means, weights=counts)
    starts = fitted.blocks[:-1]
    xs = np.add.reduceat(values * counts, starts) / np.add.reduceat(counts, starts)
    ys = np.clip(fitted.x[starts], 0.0, 1.0)
    inner = (xs > 0) & (xs < 1)
    value_at_one = float(ys[-1])
    xs, ys = xs[inner], ys[inner]
    return Calibration("isotonic", (0.0, *xs.tolist(), 1.0), (0.0, *ys.tolist(), value_at_one))


def _temperature(x: np.ndarray, y: np.ndarray) -> Calibration:
    from scipy.optimize import minimize_scalar

    inner = np.clip(x, EDGE, 1 - EDGE)
    odds = np.log(inner) - np.log1p(-inner)

    def loss(log_temperature: float) -> float:
        scaled = odds / np.exp(log_temperature)
        return float((np.logaddexp(0, scaled) - y * scaled).mean())

    bounds = (np.log(SHARPEST), np.log(FLATTEST))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return Calibration("temperature", temperature=float(np.exp(best.x)))


def _knots(values: Any) -> Float[np.ndarray, "knots"]:
    try:
        return np.asarray(values, dtype=np.float64).reshape(len(values))
    except (TypeError, ValueError, OverflowError):
        raise InvalidCalibration(f"knots must be numbers, not {shown(values)}") from None


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """Drafted children of accepted nodes, one per row.

    Args:
        predicted: the draft's probability of the child given its parent.
        accepted: whether the child was accepted.
        exact: the probability that it is accepted, given its siblings.
        rank: its rank among its siblings.
        text: index of its text, or of the file if texts are excerpts.
    """

    predicted: Float[np.ndarray, "n"]
    accepted: Bool[np.ndarray, "n"]
    exact: Float[np.ndarray, "n"]
    rank: Int[np.ndarray, "n"]
    text: Int[np.ndarray, "n"]


def calibration_data(trace: Trace) -> CalibrationData:
    """Every drafted child of the kept positions of a trace, and whether it was accepted.

    Args:
        trace: a trace of deterministic children, decoded or of given texts.

    Raises:
        InvalidTrace: if children were drawn at random, since these are accepted with about min(1, p / q)
            and not with q; or if the trace is of a text source.
    """
    if Law.of(trace.law) is not Law.DETERMINISTIC:
        raise InvalidTrace(
            f"the trace is of law '{trace.law}': a drawn child is accepted with the ratio of the target's "
            "to the draft's probability, which says nothing about calibration; record one of deterministic "
            "children instead (`treespec trace --law deterministic`)"
        )
    if trace.text_drafts is not None:
        raise InvalidTrace(
            "the trace is of a text source, which counts what it has read and has no model's "
            "probabilities: there is nothing to calibrate"
        )
    at, width = np.flatnonzero(trace.inside), trace.width
    return CalibrationData(
        predicted=trace.probs[at].ravel(),
        accepted=(trace.ranks[at, None] == np.arange(width)).ravel(),
        exact=trace.accepted[at].ravel(),
        rank=np.tile(np.arange(width), len(at)),
        text=np.repeat(trace.file_of[trace.text_of[at]], width),
    )


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
