"""Joint intervals: statements about many pairs of methods that are all true at once, with probability 95 %.

"The best tree is faster than *every* chain" is a statement about every pair of a tree and a chain, made
after looking at which tree did best. It holds if the interval of each of that tree's pairs excludes 1 when
all pairs of the run share one, wider, boundary: the 95 % quantile of the largest of their statistics,

    max over pairs |t|,    t of a pair = its log ratio over its standard error (`report.statistics`),

(max-t; T. Hothorn, F. Bretz and P. Westfall, Simultaneous Inference in General Parametric Models,
Biometrical J. 50, 2008, 346-363). Pairs of one run are correlated, so it is lower than Bonferroni's.
Their joint distribution is simulated: each sample's contributions to all pairs are multiplied by one normal
number, which gives normal statistics with the correlations of the data (multiplier bootstrap; V.
Chernozhukov, D. Chetverikov and K. Kato, arXiv:1212.6906), and all are divided by the square root of
chi-square over n - 1, as in Student's t. The numbers are fixed, and methods and samples are put in an order
that depends on their values alone, so that the result is a function of the set of records.

The same intervals, over all pairs of lossless methods, decide which methods are shown to be slower than
another one: the others are the ones in bold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treespec.experiments.report.halvings import canonical
from treespec.experiments.report.statistics import (
    FEWEST_FOR_INTERVAL,
    ONE_LOOK,
    LogRatio,
    student,
    tail_of,
)
from treespec.search.intervals import Interval

DRAWS = 10_000
"""Number of simulated runs; 500 of them lie beyond the boundary of a single look."""

FEWEST_BEYOND = 20
"""Fewest simulated runs beyond a boundary; a look that may spend less decides nothing jointly."""

Floats = NDArray[np.float64]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Faster:
    """A method that is faster than every method of another family, jointly.

    Args:
        method: the method.
        least: the lowest bound of its ratios.
        pairs: number of pairs that share the boundary.
    """

    method: str
    least: float
    pairs: int


def joint(
    tables: Mapping[str, ArrayLike], pairs: Sequence[Pair], boundary: float | None = None
) -> dict[Pair, Interval]:
    """The ratio of each pair of methods, with intervals that all contain the truth in 95 % of runs.

    Args:
        tables: `[2, samples]`, tokens and cost of each method on every sample.
        pairs: names of the methods; the ratio is tokens per cost of the first over that of the second.
        boundary: of the look in a run with `until`, through Student's t; the joint boundary spends as much.

    Returns:
        One interval per pair; without bounds for few samples.
    """
    if not pairs:
        return {}
    names = sorted({name for pair in pairs for name in pair})
    values = np.stack([np.asarray(tables[name], dtype=np.float64) for name in names])
    (order,), samples = canonical(values)
    names, values = [names[place] for place in order], values[order][..., samples]
    n = values.shape[-1]
    sums = values.sum(-1)
    shares = values / sums[..., None]
    parts, logs = shares[:, 0] - shares[:, 1], np.log(sums[:, 0] / sums[:, 1])
    places = np.array([[names.index(name) for name in pair] for pair in pairs])
    differences = parts[places[:, 0]] - parts[places[:, 1]]
    # every pair once, in an order of its own, whichever way round and in whichever order they were given
    unordered = np.unique(np.sort(places, axis=1), axis=0)
    shared = None
    if n >= FEWEST_FOR_INTERVAL:
        alpha = tail_of(boundary, n)
        shared = _boundary(parts[unordered[:, 0]] - parts[unordered[:, 1]], alpha)
    return {
        pair: LogRatio.of(float(logs[i] - logs[j]), row).interval(shared)
        for pair, (i, j), row in zip(pairs, places, differences, strict=True)
    }


def over_all(
    tables: Mapping[str, ArrayLike],
    left: Sequence[str],
    right: Sequence[str],
    boundary: float | None = None,
) -> tuple[Faster | None, Faster | None]:
    """The method of the left family that is jointly faster than every one of the right, and vice versa."""
    found = joint(tables, [(a, b) for a in left for b in right], boundary)
    least = (
        {a: min(found[a, b].low for b in right) for a in left},
        {b: min(1 / found[a, b].high for a in left) for b in right},
    )
    best = [max(sorted(of), key=of.__getitem__) for of in least]
    first, second = (
        Faster(name, of[name], len(found)) if of[name] > 1 else None
        for name, of in zip(best, least, strict=True)
    )
    return first, second


def _boundary(differences: Floats, alpha: float) -> float:
    """The quantile 1 - alpha of the largest statistic over the pairs, `[pairs, samples]`."""
    if alpha * DRAWS < FEWEST_BEYOND:
        return inf
    n = differences.shape[1]
    scales = np.sqrt((differences**2).sum(-1))
    differ = scales > 0
    if not differ.any():
        return student(ONE_LOOK, n)
    normal, root = _multipliers(n)
    largest = np.abs((differences[differ] / scales[differ, None]) @ normal).max(0) / root
    return float(np.quantile(largest, 1 - alpha))


@lru_cache(maxsize=4)
def _multipliers(samples: int) -> tuple[Floats, Floats]:
    """Normal numbers, `[samples, DRAWS]`, and square roots of chi-square over its degrees, `[DRAWS]`."""
    rng = np.random.default_rng(samples)
    normal = rng.standard_normal((samples, DRAWS))
    return normal, np.sqrt(rng.chisquare(samples - 1, DRAWS) / (samples - 1))
