"""Ratios of totals over prompts, with confidence intervals that no order of the prompts can move.

The independent sample is the prompt: its tokens, times and steps under *every* method belong together, so
that a hard prompt is hard for both sides of a comparison. Excerpts of one file are alike, so together they
are one sample. The statistic is a ratio of totals, as in

    speedup = (tokens of m / seconds of m) / (tokens of b / seconds of b),   all summed over prompts

**Standard error.** That of the logarithm of the ratio, from the linearised contribution of each sample to
it: its share of each total above the line, minus its share of each total below (the delta method, as for
any ratio estimator: W. G. Cochran, Sampling Techniques, third edition, 1977, section 6.4). Bounds are
quantiles of Student's t with one degree of freedom less than there are samples.

**Skewness.** If a few prompts are much more expensive than the others, Student's statistic T is skewed.
Hall's statistic

    g(T) = (sqrt(n) / s) ((1 + s T / (3 sqrt(n)))^3 - 1) + s / (6 sqrt(n)),    s the sample's skewness,

is not skewed to order 1 / sqrt(n), and increases with T, so it can be inverted (P. Hall, On the Removal of
Skewness by Transformation, J. R. Stat. Soc. B 54, 1992, 221-228). Each bound is the wider of those from T
and g: with few prompts the sample may hide an existing skew, or show one that does not exist. Among 8,000
runs of equals in the worst scenario of a study of repeated looks, 9.3 % named a winner by T, 6.8 % by g,
and 5.4 % by T together with either. The curvature of the logarithm is left out: it reduces the skew by
about as much as few prompts hide of it.

**Order.** Sums over samples are exact (`math.fsum`), so that no order of prompts changes a bit.

How often these intervals contain the truth: `treespec.experiments.research.studies.coverage`.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import cbrt, exp, fsum, inf, isfinite, log, nan, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treespec.search.intervals import Interval

CONFIDENCE = 0.95

FEWEST_FOR_INTERVAL = 4
"""Fewest independent samples for an interval: fewer say next to nothing about their spread."""

FEWEST_FOR_WINNER = 12
"""Fewest independent samples for a verdict that names a winner."""

ONE_LOOK = 1.959963984540054
"""Boundary of a run that is looked at once: the normal quantile of 97.5 %."""


def student(boundary: float, samples: int) -> float:
    """The boundary with the same tail for a statistic whose variance is estimated from `samples` samples.

    Example:
        >>> round(student(2.031, 60), 3), round(student(2.031, 8), 3)
        (2.076, 2.479)
    """
    from scipy.special import ndtr, stdtrit

    return -float(stdtrit(samples - 1, ndtr(-boundary))) if isfinite(boundary) else inf


def tail_of(boundary: float | None, samples: int) -> float:
    """The two-sided error probability of a boundary of Student's t; by default that of a single look."""
    from scipy.special import stdtr

    if boundary is None:
        return 1 - CONFIDENCE
    return 2 * float(stdtr(samples - 1, -boundary)) if isfinite(boundary) else 0.0


def boundary_of_tail(alpha: float, samples: int) -> float:
    """The boundary of Student's t with this two-sided error probability; infinite if there is none."""
    from scipy.special import stdtrit

    return -float(stdtrit(samples - 1, alpha / 2)) if alpha > 0 else inf


@dataclass(frozen=True)
class LogRatio:
    """The logarithm of a ratio, with what its interval needs.

    Args:
        value: the logarithm.
        error: its standard error.
        skewness: skewness of the samples' contributions to it.
        samples: number of samples.
    """

    value: float
    error: float
    skewness: float
    samples: int

    @classmethod
    def of(cls, value: float, contributions: NDArray[np.float64]) -> "LogRatio":
        """From the contributions of the samples, `[samples]`, which add up to 0."""
        squares, n = contributions * contributions, len(contributions)
        spread, cubes = fsum(squares.tolist()), fsum((squares * contributions).tolist())
        skewness = sqrt(n * (n - 1)) / max(1, n - 2) * sqrt(n) * cubes
        return cls(
            value,
            sqrt(n / (n - 1) * spread) if n > 1 else nan,
            skewness / spread**1.5 if spread > 0 else 0.0,
            n,
        )

    def interval(self, boundary: float | None = None) -> Interval:
        """The ratio with its interval; no bounds with fewer than `FEWEST_FOR_INTERVAL` samples.

        Args:
            boundary: how many standard errors the bounds are away, through Student's t; by default that of
                a 95 % interval looked at once. Infinite if nothing can be decided yet.
        """
        estimate = exp(self.value)
        if self.samples < FEWEST_FOR_INTERVAL:
            return Interval(estimate, nan, nan)
        if boundary is None:
            boundary = student(ONE_LOOK, self.samples)
        if not isfinite(boundary):
            return Interval(estimate, 0.0, inf)
        below = max(boundary, self._skewed(boundary)) * self.error
        above = max(boundary, -self._skewed(-boundary)) * self.error
        with np.errstate(over="ignore"):
            low, high = estimate * np.exp([-below, above])
        return Interval(estimate, float(low), float(high))

    def _skewed(self, boundary: float) -> float:
        """The value of T at which Hall's statistic reaches the boundary."""
        skewness = self.skewness if abs(self.skewness) > 1e-6 else 1e-6
        scaled = skewness / sqrt(self.samples)
        return 3 / scaled * (cbrt(1 + scaled * (boundary - scaled / 6)) - 1)


@dataclass(frozen=True, eq=False)
class Totals:
    """Columns with one value per independent sample, and ratios of their totals.

    All ratios taken from one object are of the same samples and are therefore paired.
    """

    columns: Mapping[Any, NDArray[np.float64]]

    @classmethod
    def of(cls, columns: Mapping[Any, ArrayLike], files: ArrayLike | None = None) -> "Totals":
        """Totals over prompts.

        Args:
            columns: one value per prompt, in the same order in every column.
            files: `[prompts]`, number of the file of each prompt; prompts of one file are one sample. None
                if the prompts are independent samples.
        """
        values = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
        if files is not None:
            values = {name: by_file(column, files) for name, column in values.items()}
        return cls(values)

    @cached_property
    def samples(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def observed(self) -> Mapping[Any, float]:
        return {name: fsum(column.tolist()) for name, column in self.columns.items()}

    def ratio(self, over: Sequence[Hashable], under: Sequence[Hashable]) -> Interval:
        """The product of the totals `over`, divided by the product of the totals `under`.

        Returns:
            The ratio with its interval; without bounds for few samples, and where a total is 0. NaN if the
            denominator is 0. A total may be negative (a metric of a plug-in): then the interval is that of
            the ratio itself instead of its logarithm.
        """
        above, below = ([self.observed[name] for name in names] for names in (over, under))
        if not prod(below):
            return Interval(nan, nan, nan)
        estimate, n = prod(above) / prod(below), self.samples
        if n < FEWEST_FOR_INTERVAL:
            return Interval(estimate, nan, nan)
        if all(total > 0 for total in (*above, *below)):
            contributions = sum(self.columns[name] / self.observed[name] for name in over) - sum(
                self.columns[name] / self.observed[name] for name in under
            )
            return LogRatio.of(log(estimate), np.asarray(contributions)).interval()
        if len(over) > 1 or len(under) > 1:
            return Interval(estimate, nan, nan)
        parts = (self.columns[over[0]] - estimate * self.columns[under[0]]) / below[0]
        error = LogRatio.of(0.0, parts).error
        return Interval.around(estimate, student(ONE_LOOK, n) * error)

    def share(self, part: Hashable, whole: Hashable) -> Interval:
        """The ratio of a total to one that contains it; its bounds lie between 0 and 1."""
        found = self.ratio([part], [whole])
        if not found.bounded:
            return found
        return Interval(found.estimate, max(found.low, 0.0), min(found.high, 1.0))

    def difference(
        self, first: tuple[Hashable, Hashable], second: tuple[Hashable, Hashable]
    ) -> Interval:
        """One share (a part and its whole) minus another of the same samples; NaN if a whole is 0."""
        return self.combined([(1.0, *first), (-1.0, *second)])

    def combined(self, terms: Sequence[tuple[float, Hashable, Hashable]]) -> Interval:
        """A sum of shares of the same samples; NaN if a whole is 0.

        Args:
            terms: for each share its factor, its part and its whole.
        """
        parts = np.zeros(self.samples)
        estimate = 0.0
        for factor, part, whole in terms:
            if not self.observed[whole]:
                return Interval(nan, nan, nan)
            share = self.observed[part] / self.observed[whole]
            estimate += factor * share
            parts += (
                factor * (self.columns[part] - share * self.columns[whole]) / self.observed[whole]
            )
        if self.samples < FEWEST_FOR_INTERVAL:
            return Interval(estimate, nan, nan)
        error = LogRatio.of(0.0, parts).error
        return Interval.around(estimate, student(ONE_LOOK, self.samples) * error)


def paired_ratio(
    tokens: ArrayLike,
    seconds: ArrayLike,
    baseline_tokens: ArrayLike,
    baseline_seconds: ArrayLike,
    *,
    files: ArrayLike | None = None,
) -> Interval:
    """Tokens per second of a method over those of a baseline, from totals over the same prompts.

    Example:
        >>> paired_ratio([64] * 4, [1.0] * 4, [64] * 4, [2.0] * 4)
        Interval(estimate=2.0, low=2.0, high=2.0)
    """
    columns = {"t": tokens, "s": seconds, "b_t": baseline_tokens, "b_s": baseline_seconds}
    return Totals.of(columns, files).ratio(["t", "b_s"], ["s", "b_t"])


def by_file(values: ArrayLike, files: ArrayLike) -> NDArray[np.float64]:
    """Sum the values of the prompts of each file, exactly.

    Returns:
        Sums, `[..., files]`, in ascending order of file numbers.

    Example:
        >>> by_file([[1, 2, 3], [4, 5, 6]], [0, 7, 0])
        array([[ 4.,  2.],
               [10.,  5.]])
    """
    table, of = np.asarray(values, dtype=np.float64), np.asarray(files)
    groups = [table[..., of == file] for file in np.unique(of)]
    sums = [np.apply_along_axis(lambda row: fsum(row.tolist()), -1, group) for group in groups]
    return np.stack(sums, axis=-1)
