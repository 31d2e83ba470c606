"""Compare the best of two families of methods, chosen on one half of the prompts and measured on the other.

The best of many methods looks better than it is on the prompts that chose it. Under one halving of the
prompts, each family's best method on one half is measured on the other half, and the other way round, so
that every prompt is used and none measures a choice that it influenced. What comes out depends on the
halving: among equal methods, another order of the same prompts gave another verdict in 9 to 15 % of runs.
Therefore the logarithm of the ratio is averaged over all balanced halvings of the samples, or over
`MOST_HALVINGS` of them, and samples and methods are put in an order that depends on their values alone. So
the result is a function of the set of samples: no order of prompts, methods or ids changes a bit of it.

The standard error is the root mean square of those of the halvings, each from the linearised contribution
of every sample to the logarithm of the ratio. It is not the standard error of the averaged contributions:
averaging hides how much the choice itself varies, which named a winner among equals in 11 to 18 % of runs.
Its interval is that of every other ratio (`report.statistics`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treespec.experiments.report.statistics import LogRatio

MOST_HALVINGS = 400
"""Halvings that are averaged; all of them if there are fewer."""

NAMED = 0.1
"""Methods chosen on at least this share of the halves are named."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """A comparison of two families.

    Args:
        ratio: tokens per cost of the left family's choices over the right family's; its skewness is that of
            the samples' contributions, averaged over the halvings.
        left: numbers of the left family's methods that were chosen often, those chosen most often first.
        right: the same of the right family.
    """

    ratio: LogRatio
    left: tuple[int, ...]
    right: tuple[int, ...]


@lru_cache(maxsize=64)
def halvings(samples: int, seed: int = 0) -> NDArray[np.bool_]:
    """Balanced halvings, `[H, samples]`: true for the samples of one half; distinct if all are listed.

    Example:
        >>> halvings(4).astype(int)
        array([[1, 1, 0, 0],
               [1, 0, 1, 0],
               [1, 0, 0, 1]])
    """
    half, even = samples // 2, samples % 2 == 0
    if comb(samples, half) // (1 + even) <= MOST_HALVINGS:
        members = [c for c in combinations(range(samples), half) if not even or 0 in c]
    else:
        rng = np.random.default_rng([seed, samples])
        members = [rng.permutation(samples)[:half] for _ in range(MOST_HALVINGS)]
    halves = np.zeros((len(members), samples), bool)
    for row, chosen in zip(halves, members, strict=True):
        row[list(chosen)] = True
    return halves


def fit(left: ArrayLike, right: ArrayLike, *, seed: int = 0) -> Fitted:
    """Compare two families on the same samples.

    Args:
        left: `[methods, 2, samples]`, tokens and cost of every method on every sample.
        right: the same of the other family.
        seed: of the halvings, if there are more than `MOST_HALVINGS`.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (left, right)]
    orders, samples = canonical(*sides)
    sides = [side[order] for side, order in zip(sides, orders, strict=True)]
    halves = halvings(len(samples), seed)
    if len(sides[0]) == len(sides[1]) == 1:  # nothing is chosen: every halving gives the same
        halves = halves[:1]
    logs, parts, chosen = zip(
        *(_measured(side[..., samples], halves) for side in sides), strict=True
    )
    contributions, n = parts[0] - parts[1], len(samples)
    averaged = LogRatio.of(float((logs[0] - logs[1]).mean()), contributions.mean(0))
    error = float(np.sqrt(n / (n - 1) * (contributions**2).sum(-1).mean()))
    return Fitted(
        replace(averaged, error=error),
        *(tuple(order[list(c)].tolist()) for order, c in zip(orders, chosen, strict=True)),
    )


def canonical(*sides: Floats) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """An order of the methods of each side, and one of the samples, that depend on their values alone.

    Counts of steps are small whole numbers, so two methods may have the same values on different samples.
    Methods are told apart by their values on samples that are told apart by the values of the methods on
    them, and so on (colour refinement); what then remains alike may be swapped without any effect.
    """
    values = np.concatenate(sides)
    methods = np.repeat(np.arange(len(sides)), [len(side) for side in sides])
    samples = np.zeros(values.shape[-1], np.int64)
    known = 0
    while (distinct := len(set(methods)) + len(set(samples))) > known:
        known = distinct
        methods = _ranks(methods, values, samples)
        samples = _ranks(samples, values.transpose(2, 1, 0), methods)
    starts = np.cumsum([0, *(len(side) for side in sides)])
    orders = [np.argsort(methods[a:b], kind="stable") for a, b in pairwise(starts)]
    return orders, np.argsort(samples, kind="stable")


def _ranks(
    ranks: NDArray[np.int64], values: Floats, others: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Ranks by their ranks so far, then by their values beside the ranks of the others."""
    keys = [
        (rank, sorted(zip(others.tolist(), *row.tolist(), strict=True)))
        for rank, row in zip(ranks.tolist(), values, strict=True)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    found, latest = np.zeros(len(keys), np.int64), 0
    for before, place in pairwise(order):
        latest += keys[place] != keys[before]
        found[place] = latest
    return found


def _measured(side: Floats, halves: NDArray[np.bool_]) -> tuple[Floats, Floats, Sequence[int]]:
    """Logarithm of tokens per cost, `[H]`; contributions of the samples, `[H, n]`; and the choices."""
    within = side @ halves.T.astype(float)  # [methods, 2, H]
    outside = side.sum(-1, keepdims=True) - within
    by_halving = np.arange(len(halves))
    best = [(totals[:, 0] / totals[:, 1]).argmax(0) for totals in (within, outside)]
    totals = outside[best[0], :, by_halving] + within[best[1], :, by_halving]  # [H, 2]
    chosen = np.where(halves, best[1][:, None], best[0][:, None])
    of_samples = side[chosen, :, np.arange(halves.shape[1])]  # [H, n, 2]
    shares = of_samples / totals[:, None]
    often = np.bincount(np.concatenate(best), minlength=len(side))
    ranked = [int(m) for m in np.argsort(-often, kind="stable") if often[m] >= NAMED * often.sum()]
    return np.log(totals[:, 0] / totals[:, 1]), shares[..., 0] - shares[..., 1], ranked
