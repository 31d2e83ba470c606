"""Looking at a run several times while it goes on, without more false verdicts than a single look has.

A run that stops as soon as its 95 % interval excludes 1 finds a winner among equals far more often than in
5 % of cases: nine looks give 23 to 29 %. Here the 5 % are spent over the looks, little at first
(K. K. G. Lan and D. L. DeMets, Discrete Sequential Boundaries for Clinical Trials, Biometrika 70, 1983,
659-663, their function of O'Brien and Fleming's type): after a share t of the planned prompts

    alpha(t) = 4 (1 - Phi(z / sqrt(t))),    z the upper alpha / 4 quantile of the normal distribution,

is spent, alpha / 2 on each side. The boundary of each look follows from the boundaries before it: score
statistics Z sqrt(t) are a Brownian motion at the times t, whose density inside the boundaries is carried
from look to look by numerical integration (P. Armitage, C. K. McPherson and B. C. Rowe, Repeated
Significance Tests on Accumulating Data, J. R. Stat. Soc. A 132, 1969, 235-244). Looks may be at any times
that do not depend on what was seen. Five equal looks give 4.877, 3.357, 2.680, 2.290, 2.031, as published
(D. M. Reboussin, D. L. DeMets, K. Kim and K. K. G. Lan, Computations for Group Sequential Boundaries Using
the Lan-DeMets Spending Function Method, Control. Clin. Trials 21, 2000, 190-207).

**Student's t.** Boundaries are of a known variance; here it is estimated from the same n prompts. Each is
replaced by the quantile of Student's t with n - 1 degrees that has the same tail (S. J. Pocock, Group
Sequential Methods in the Design and Analysis of Clinical Trials, Biometrika 64, 1977, 191-199).

**Standard error.** On the logarithm of the ratio of totals, from the linearised share of each prompt in it.
Not from the bootstrap: an early look asks for a tail of 1e-6 or less, which no 10,000 resamples hold, while
a standard error can be multiplied by any boundary.

**Skewness.** Where a few prompts are much dearer than the others, Student's statistic T is skewed, and
looks of a run until decided find up to 9.4 % winners among equals. Hall's statistic

    g(T) = (sqrt(n) / s) ((1 + s T / (3 sqrt(n)))^3 - 1) + s / (6 sqrt(n)),    s the sample's skewness,

is not, to that order, and grows with T, so that it can be turned round (P. Hall, On the Removal of Skewness
by Transformation, J. R. Stat. Soc. B 54, 1992, 221-228). A bound is the farther one of T's and g's: few
prompts may hide the skew there is, or show one that is not there. Of 8,000 runs among equals in the worst
world of the study, 9.3 % named a winner by T, 6.8 % by g, 6.5 % by N. J. Johnson's statistic of 1978, which
does not grow with T everywhere, and 5.4 % by T together with either. The curvature of the logarithm is left
out: it lowers the skew by about as much as few prompts hide of it.

**Repeated intervals** hold the ratios that a look does not exclude. All those of a run together hold the
true ratio with 95 % (C. Jennison and B. W. Turnbull, Interim Analyses: The Repeated Confidence Interval
Approach, J. R. Stat. Soc. B 51, 1989, 305-361), whatever made the run stop.

Simulated by `python -m treespec.experiments.studies.until_simulation`, which has the tables.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treespec.experiments.report.statistics import CONFIDENCE
from treespec.search.intervals import Interval

__all__ = [
    "boundaries",
    "boundary_at",
    "log_ratio",
    "looks",
    "reach",
    "repeated_interval",
    "spent",
    "student",
]

FIRST_LOOK = 8
"""Prompts at the first look; each further one comes after half as many prompts again."""

NODES = 401
"""Points of the quadrature between two boundaries."""

FARTHEST_DENSITY = 9.0
"""Standard deviations beyond which the density is left out: less than 1e-18 of it lies there."""

LARGEST_BOUNDARY = 37.0
"""Boundary beyond which a tail is no number any more: such a look cannot decide."""

Floats = NDArray[np.float64]


def looks(most: int) -> list[int]:
    """Numbers of prompts after which is looked; the last one is `most`.

    Example:
        >>> looks(200)
        [8, 12, 18, 27, 40, 60, 90, 135, 200]
        >>> looks(6)
        [6]
    """
    numbers, number = [], FIRST_LOOK
    while number < most:
        numbers.append(number)
        number += number // 2
    return [*numbers, most]


def spent(share: float, alpha: float = 1 - CONFIDENCE) -> float:
    """The error probability, of both sides together, that is spent after a share of the planned prompts.

    Example:
        >>> round(spent(1.0), 6), round(spent(0.5), 6)
        (0.05, 0.003051)
    """
    from scipy.special import ndtr, ndtri

    return float(4 * ndtr(ndtri(alpha / 4) / sqrt(share)))


@lru_cache(maxsize=256)
def boundaries(shares: tuple[float, ...], alpha: float = 1 - CONFIDENCE) -> tuple[float, ...]:
    """The boundaries of the looks, on the scale of a standard normal statistic.

    Args:
        shares: of the planned prompts at each look; they grow, and none is above 1.
        alpha: the error probability of all looks, of both sides together.

    Returns:
        One for each look; infinite where so little is spent that no statistic decides.

    Raises:
        ValueError: if shares do not grow, or are not within 0 and 1.

    Example:
        >>> [round(b, 3) for b in boundaries((0.2, 0.4, 0.6, 0.8, 1.0))]
        [4.877, 3.357, 2.68, 2.29, 2.031]
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    if not shares or shares[0] <= 0 or shares[-1] > 1 or (np.diff(shares) <= 0).any():
        raise ValueError(f"shares of looks must grow from above 0 to at most 1, not {shares}")
    points, weights = np.polynomial.legendre.leggauss(NODES)
    # the score before the first look: all of it at 0
    at, mass, time, before, bounds = np.zeros(1), np.ones(1), 0.0, 0.0, []
    for share in shares:
        spread, now = sqrt(share - time), spent(share, alpha)

        def beyond(
            boundary: float,
            spend: float = now - before,
            at: Floats = at,
            mass: Floats = mass,
            spread: float = spread,
            scale: float = sqrt(share),
        ) -> float:
            edge = boundary * scale
            outside = ndtr((at - edge) / spread) + ndtr((-at - edge) / spread)
            return float(mass @ outside) - spend

        root: Any = (
            inf
            if beyond(LARGEST_BOUNDARY) >= 0
            else brentq(beyond, 0, LARGEST_BOUNDARY, xtol=1e-10)
        )
        boundary = float(root)
        bounds.append(boundary)
        edge = min(boundary, FARTHEST_DENSITY) * sqrt(share)
        where = edge * points
        apart = (where[:, None] - at) / spread
        density = np.exp(-(apart**2) / 2) @ mass / (spread * sqrt(2 * np.pi))
        at, mass, time, before = where, edge * weights * density, share, now
    return tuple(bounds)


def student(boundary: float, samples: int) -> float:
    """The boundary of a statistic whose variance is estimated from so many samples: the same tail.

    Example:
        >>> round(student(2.031, 60), 3), round(student(2.031, 8), 3)
        (2.076, 2.479)
    """
    from scipy.special import ndtr, stdtrit

    return -float(stdtrit(samples - 1, ndtr(-boundary))) if isfinite(boundary) else inf


def boundary_at(samples: int, planned: int, earlier: Sequence[int], *, last: bool) -> float:
    """The boundary of a look, through Student's t.

    Args:
        samples: that are compared now.
        planned: at most.
        earlier: samples that were compared at the looks before.
        last: all that was planned has run: what is left of the error probability is spent.

    Returns:
        Infinite if fewer than two samples are compared, or no more than at a look before.
    """
    seen = sorted({count for count in earlier if 0 < count < planned})
    if samples < 2 or (not last and (samples >= planned or samples <= max(seen, default=0))):
        return inf
    share = 1.0 if last else samples / planned
    return student(boundaries((*(count / planned for count in seen), share))[-1], samples)


def log_ratio(
    tokens: ArrayLike, spent: ArrayLike, b_tokens: ArrayLike, b_spent: ArrayLike
) -> tuple[Floats, Floats]:
    """Logarithm of a ratio of totals, (tokens / spent) / (b_tokens / b_spent), and its standard error.

    A sample's share in the logarithm of a total is its part of the total, so that the logarithm of the
    ratio varies as the sum of such parts; those of one sample go together, because comparisons are paired.

    Args:
        tokens: `[..., n]`, of n independent samples.
        spent: `[..., n]`, seconds or steps.
        b_tokens: of the other side.
        b_spent: of the other side.

    Returns:
        Estimate and standard error, `[...]`.
    """
    estimate, error, _ = _moments(tokens, spent, b_tokens, b_spent)
    return estimate, error


def _moments(*columns: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Estimate, standard error, and the skewness of the samples' parts in the estimate; `[...]` each."""
    values = [np.asarray(column, dtype=np.float64) for column in columns]
    totals = [column.sum(-1, keepdims=True) for column in values]
    signs = (1.0, -1.0, -1.0, 1.0)
    n = values[0].shape[-1]
    estimate = sum(s * np.log(t[..., 0]) for s, t in zip(signs, totals, strict=True))
    parts = np.asarray(sum(s * c / t for s, c, t in zip(signs, values, totals, strict=True)))
    square = (parts**2).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = sqrt(n * (n - 1)) / max(1, n - 2) * sqrt(n) * (parts**3).sum(-1) / square**1.5
    return (
        np.asarray(estimate),
        np.sqrt(n / (n - 1) * square),
        np.nan_to_num(skewness, posinf=0, neginf=0),
    )


def reach(
    tokens: ArrayLike,
    spent: ArrayLike,
    b_tokens: ArrayLike,
    b_spent: ArrayLike,
    boundary: float,
) -> tuple[Floats, Floats]:
    """How far from the logarithm of a ratio of totals a look excludes nothing.

    Args:
        tokens: `[..., n]`, as for `log_ratio`.
        spent: likewise.
        b_tokens: likewise.
        b_spent: likewise.
        boundary: of the look, through Student's t.

    Returns:
        Below and above it, `[...]`; infinite if the boundary is.
    """
    _, error, skewness = _moments(tokens, spent, b_tokens, b_spent)
    if not isfinite(boundary):
        return np.full_like(error, inf), np.full_like(error, inf)
    n = np.shape(tokens)[-1]
    below = np.maximum(boundary, _skewed(boundary, skewness, n))
    above = np.maximum(boundary, -_skewed(-boundary, skewness, n))
    return below * error, above * error


def _skewed(boundary: float, skewness: Floats, n: int) -> Floats:
    """The T at which Hall's statistic is at the boundary."""
    part = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness) / sqrt(n)
    return 3 / part * (np.cbrt(1 + part * (boundary - part / 6)) - 1)


def repeated_interval(
    tokens: ArrayLike,
    spent: ArrayLike,
    b_tokens: ArrayLike,
    b_spent: ArrayLike,
    boundary: float,
) -> Interval:
    """The ratio of totals, with the interval of a look.

    Args:
        tokens: one value per independent sample.
        spent: seconds, or steps.
        b_tokens: of the other side.
        b_spent: of the other side.
        boundary: of the look, through Student's t.

    Example:
        >>> repeated_interval([64, 64], [1.0, 1.0], [64, 64], [2.0, 2.0], 3.0)
        Interval(estimate=2.0, low=2.0, high=2.0)
    """
    estimate = float(np.sum(tokens) / np.sum(spent) * np.sum(b_spent) / np.sum(b_tokens))
    below, above = reach(tokens, spent, b_tokens, b_spent, boundary)
    with np.errstate(over="ignore"):
        return Interval(estimate, float(estimate * np.exp(-below)), float(estimate * np.exp(above)))
