"""Confidence intervals: for rates from counts, and for ratios of totals by resampling texts."""

from functools import lru_cache
from math import inf, isclose, isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Real

from treespec.checks import integer
from treespec.search.errors import InvalidLimit

RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its confidence interval, which are NaN if there is none.

    An `Interval` represents a single number and formats it with its bounds (`text`), the bounds alone
    (`bounds`), or half the distance between them (`plus_minus`, `spread`). Many rates at once are arrays
    (`AcceptanceEstimate`, `Reliability`). Quantiles of times, smallest and largest values, and standard
    errors are not intervals of an estimate, and are not represented by this class.

    Example:
        >>> Interval(2.0, 1.75, 2.25).half_width
        0.25
        >>> Interval(1.1, 0.9, 1.3).contains(1.0)
        True
        >>> Interval(1.1, 0.9, 1.3).text(), Interval(1.1, 0.9, 1.3).plus_minus(1)
        ('1.10 0.90–1.30', '1.1±0.2')
    """

    estimate: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: float, low: float | None, high: float | None) -> "Interval":
        """The interval of three numbers from a file, in which a missing bound is None instead of NaN."""
        return cls(estimate, nan if low is None else low, nan if high is None else high)

    @classmethod
    def around(cls, estimate: float, half_width: float) -> "Interval":
        """The interval whose bounds are equally far from the estimate."""
        return cls(estimate, estimate - half_width, estimate + half_width)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval at all: a single text gives an estimate without one."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def has_width(self) -> bool:
        """Whether there is an interval with different bounds; they are equal if all texts agree."""
        return self.bounded and not isclose(self.low, self.high, rel_tol=1e-9)

    @property
    def half_width(self) -> float:
        """Half the distance between the bounds."""
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        """Whether `value` lies within the bounds; true if there are no bounds."""
        return not self.bounded or self.low <= value <= self.high

    def scaled(self, factor: float) -> "Interval":
        """The interval of a positive multiple, such as the same time in another unit."""
        return Interval(factor * self.estimate, factor * self.low, factor * self.high)

    def inverse(self) -> "Interval":
        """The interval of the reciprocal: of b / a, if this is the interval of a / b."""
        return Interval(1 / self.estimate, 1 / self.high, 1 / self.low if self.low else inf)

    def text(self, digits: int = 2, unit: str = "", *, in_sentence: bool = False) -> str:
        """The estimate, followed by its bounds if they exist and differ.

        Args:
            digits: digits after the decimal point.
            unit: written after each number, such as ` %`.
            in_sentence: put the bounds in brackets, for use within a sentence.

        Example:
            >>> Interval(1.1, 0.9, 1.3).text(1, in_sentence=True)
            '1.1 (0.9–1.3)'
        """
        estimate = f"{self.estimate:.{digits}f}{unit}"
        if not self.has_width:
            return estimate
        bounds = self.bounds(digits, unit)
        return f"{estimate} ({bounds})" if in_sentence else f"{estimate} {bounds}"

    def bounds(self, digits: int = 2, unit: str = "", *, between: str = "–") -> str:
        """The bounds alone, for use where the surrounding text explains them.

        Args:
            digits: digits after the decimal point.
            unit: written after the upper bound.
            between: written between the bounds; replaced by ` to ` before a minus sign.

        Example:
            >>> Interval(1.1, 0.9, 1.3).bounds(), Interval(0.1, -0.2, 0.3).bounds(1, " %")
            ('0.90–1.30', '-0.2 to 0.3 %')
        """
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}{unit}"
        return f"{low}{' to ' if low.startswith('-') else between}{high}"

    def spread(self, digits: int = 2) -> str:
        """`±` and half the distance between the bounds; empty unless they exist and differ."""
        return f"±{self.half_width:.{digits}f}" if self.has_width else ""

    def plus_minus(self, digits: int = 2) -> str:
        """The estimate and its `spread`, for use where there is no room for both bounds."""
        return f"{self.estimate:.{digits}f}{self.spread(digits)}"


def require_level(level: float) -> None:
    """Refuse a confidence level outside (0, 1)."""
    if not 0 < level < 1:
        raise InvalidLimit(f"level = {level}, but must be between 0 and 1, such as 0.95")


def wilson(
    hits: Float[np.ndarray, "*cells"], trials: Float[np.ndarray, "*cells"], level: float = 0.95
) -> tuple[Float[np.ndarray, "*cells"], Float[np.ndarray, "*cells"]]:
    """Wilson's score interval of a rate (JASA 22, 1927), which is reliable for few trials and rates near 0.

    Args:
        hits: successes, possibly fractional.
        trials: attempts; without attempts the interval is [0, 1].
        level: confidence level.

    Returns:
        The lower and the upper bounds.

    Example:
        >>> low, high = wilson(np.array([0.0, 5.0]), np.array([10.0, 10.0]))
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.0, 0.237], [0.278, 0.763])
    """
    from scipy.special import ndtri

    require_level(level)
    z2 = float(ndtri((1 + level) / 2)) ** 2
    n = np.where(np.asarray(trials) > 0, trials, 1.0)
    share = np.clip(hits / n, 0, 1)
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    tried = np.asarray(trials) > 0
    low = np.where(tried & (hits > 0), np.clip(middle - half, 0, 1), 0.0)
    high = np.where(tried & (hits < trials), np.clip(middle + half, 0, 1), 1.0)
    return low, high


@lru_cache(maxsize=16)
def draws(texts: int, resamples: int = RESAMPLES, seed: int = 0) -> Float[np.ndarray, "B texts"]:
    """How often each text is drawn in each resample with replacement; equal for equal arguments.

    So all quantities of the same texts are resampled together, and their differences are paired.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(texts, np.full(texts, 1 / texts), size=resamples).astype(np.float64)
    drawn.flags.writeable = False
    return drawn


def expanded_tail(texts: int, level: float = 0.95) -> float:
    """The share of resamples beyond each bound of an expanded percentile interval.

    For few texts, it corrects two errors of the plain percentile interval, whose share is (1 - level) / 2:
    the factor (n - 1) / n in the variance, and normal instead of Student's t quantiles (Hesterberg,
    arXiv:1411.5279).

    Args:
        texts: number of resampled texts, at least 2.
        level: confidence level.

    Raises:
        InvalidLimit: for a single text, or if `level` is not between 0 and 1.

    Example:
        >>> [round(expanded_tail(texts), 4) for texts in (6, 24, 1000)]
        [0.0024, 0.0173, 0.0248]
    """
    from scipy.special import ndtr, stdtrit

    require_level(level)
    if texts < 2:
        raise InvalidLimit("a bootstrap draws texts with replacement, and there is only one text")
    student = stdtrit(texts - 1, (1 - level) / 2)
    return float(ndtr(sqrt(texts / (texts - 1)) * student))


def bootstrap_bounds(
    resampled: Float[np.ndarray, "B *cells"], texts: int, level: float = 0.95
) -> tuple[Float[np.ndarray, "*cells"], Float[np.ndarray, "*cells"]]:
    """Expanded percentiles of resampled values; see `expanded_tail`."""
    tail = expanded_tail(texts, level)
    low, high = np.nanquantile(resampled, [tail, 1 - tail], axis=0)
    return low, high


def ratio(
    over: Real[np.ndarray, "texts"],
    under: Real[np.ndarray, "texts"],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A ratio of totals over texts, with its bootstrap interval; a single text gives no bounds.

    Example:
        >>> ratio(np.array([6, 6]), np.array([3, 3]))
        Interval(estimate=2.0, low=2.0, high=2.0)
    """
    require_level(level)
    resamples = integer("resamples", resamples, 1, InvalidLimit)
    seed = integer("seed", seed, 0, InvalidLimit)
    estimate = float(over.sum() / under.sum())
    if len(over) < 2:
        return Interval(estimate, float("nan"), float("nan"))
    drawn = draws(len(over), resamples, seed)
    low, high = bootstrap_bounds((drawn @ over) / (drawn @ under), len(over), level)
    return Interval(estimate, float(low), float(high))
