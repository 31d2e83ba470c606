"""The tables of the dynamic programme, filled size by size, for several depths and all ranks at once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

SUMS_PER_BLOCK = 1 << 16
"""Limit on the sums held at a time: half a mebibyte, which fits a core's L2 cache."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Tables of subtrees for consecutive limits of the depth, the smallest first.

    Args:
        first: `first[n, k, b]` is the maximum of expected tokens over subtrees of n nodes whose root has
            exactly b children, in table k; for b below the largest number of children.
        best: `best[n, k]` is the maximum over all numbers of children; -inf if there is no such subtree.
        counts: `counts[n, k]` is the smallest number of children that reaches this maximum.
    """

    first: Float[np.ndarray, "sizes tables ranks"]
    best: Float[np.ndarray, "sizes tables"]
    counts: Int[np.ndarray, "sizes tables"]


def leaf(sizes: int, tables: int, ranks: int, dtype: np.dtype) -> Tables:
    """Tables in which only the subtree of one node is known."""
    first = np.full((sizes, tables, ranks), -np.inf, dtype=dtype)
    best = np.full((sizes, tables), -np.inf, dtype=dtype)
    first[1, :, 0] = best[1] = 1
    return Tables(first, best, np.zeros((sizes, tables), dtype=np.int64))


@np.errstate(invalid="ignore")
def fill(
    rates: Float[np.ndarray, "tables ranks"],
    below: Float[np.ndarray, "sizes"] | None,
    sizes: int,
    known: Tables | None = None,
    upto: int = 1,
) -> Tables:
    """Fill tables one size after the other.

    A subtree of n nodes consists of a first part (the root and all but its last child's subtree) and the
    last child's subtree, both smaller than n. So each size takes one sum and one maximum over arrays for
    all tables and all numbers of children, although each table is computed from the one before it.

    Args:
        rates: rates of the children of each table's root.
        below: values by size of the subtrees below the first table's root; None if there is a single table,
            which is also the table of its subtrees.
        sizes: the largest number of nodes plus 1.
        known: tables of which the last agrees with all of these up to the size `upto`.
        upto: see `known`.
    """
    count, ranks = rates.shape
    tables = leaf(sizes, count, ranks, rates.dtype)
    first, best, counts = tables.first, tables.best, tables.counts
    if known is not None:
        first[: upto + 1] = known.first[: upto + 1, -1:]
        best[: upto + 1] = known.best[: upto + 1, -1:]
        counts[: upto + 1] = known.counts[: upto + 1, -1:]
    if below is None:
        worth = best
    else:
        worth = np.empty_like(best)
        worth[:, 0], worth[:, 1:] = below, best[:, :-1]
    second = weighted(rates, worth[:, :, None])
    flat, flat_second = first.reshape(sizes, -1), second.reshape(sizes, -1)
    space = np.empty(
        (max(1, min(sizes, SUMS_PER_BLOCK // (count * ranks))), count * ranks), rates.dtype
    )
    for n in range(upto + 1, sizes):
        best_sums = _best_sum(flat[1:n], flat_second[n - 1 : 0 : -1], space).reshape(count, ranks)
        counts[n] = best_sums.argmax(axis=1) + 1
        best[n] = best_sums.max(axis=1)
        first[n, :, 1:] = best_sums[:, :-1]
        if below is not None:
            worth[n, 1:] = best[n, :-1]
        second[n] = weighted(rates, worth[n, :, None])
    return tables


def weighted(
    rates: Float[np.ndarray, "*#cells"] | np.floating, worth: Float[np.ndarray, "*#cells"]
) -> Float[np.ndarray, "*cells"]:
    """Rates times the values of subtrees; infeasible values (-inf) remain so, also if the rate is 0.

    Call it within `np.errstate(invalid="ignore")`.
    """
    return np.fmax(rates * worth, -np.inf)  # 0 * -inf is NaN, which fmax ignores


def _best_sum(first: np.ndarray, second: np.ndarray, space: np.ndarray) -> np.ndarray:
    """The maximum of `first + second` over the rows, for as many rows at a time as fit into `space`."""
    best_sums = None
    for row in range(0, len(first), len(space)):
        block = first[row : row + len(space)]
        sums = np.add(block, second[row : row + len(space)], out=space[: len(block)])
        best = np.maximum.reduce(sums)
        best_sums = best if best_sums is None else np.maximum(best_sums, best)
    assert best_sums is not None
    return best_sums
