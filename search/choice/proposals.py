"""Trees worth replaying: for every size and depth, the best under the rates of a trace."""

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.trace_speed import rates_from
from treespec.search.optimum.frontier import optimal_frontier
from treespec.search.rates.rates import RateSettings
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape

__all__ = ["chains", "grid", "proposed", "rates_at"]

SHRINKAGE_TRIALS = 20.0
"""Pseudo-trials that shrink each depth's rate towards that of all depths: deep levels have few trials."""
SIZE_RATIO = 1.35
"""Ratio of successive sizes, or depths, of a grid. Local moves fill the gaps."""


def grid(largest: int) -> list[int]:
    """All numbers up to 6, then a geometric grid up to the largest.

    Example:
        >>> grid(24)
        [1, 2, 3, 4, 5, 6, 8, 10, 14, 19, 24]
    """
    numbers, next_number = set(range(1, min(largest, 6) + 1)), 6.0
    while next_number < largest:
        next_number *= SIZE_RATIO
        numbers.add(min(int(next_number), largest))
    return sorted(numbers)


def rates_at(
    trace: Trace,
    starts: Int[np.ndarray, "starts"],
    texts: Bool[np.ndarray, "texts"],
    bounds: Bounds,
) -> Float[np.ndarray, "levels ranks"]:
    """Rates by depth and rank of steps that begin at these positions.

    Rates are made non-increasing in the rank, which makes the search for trees fast and removes only noise.
    Levels that no step reaches get the rates of all depths together.

    Args:
        trace: the trace of these positions.
        starts: positions that steps begin at.
        texts: mask of the texts that count.
        bounds: limits of depth and branching.
    """
    starts = starts[texts[trace.text_of[starts]]]
    mass, trials = np.zeros((2, bounds.depth, bounds.branching))
    by_depth, by_text = rates_from(trace, starts, bounds.depth, bounds.branching)
    mass[: len(by_depth)], trials[: len(by_depth)] = by_depth, by_text.sum(axis=1)[:, None]
    return RateSettings(True, SHRINKAGE_TRIALS).rates(mass, trials)


def proposed(rates: Float[np.ndarray, "levels ranks"], bounds: Bounds) -> list[TreeShape]:
    """The trees with the most expected tokens for a grid of sizes and depths (`optimal_frontier`).

    Trees are proposed under the rates by depth and rank, and under those of the first level used at every
    depth. Proposals are valued by replay, so misleading rates cost only time.

    Args:
        rates: rates by depth and rank, non-increasing in the rank.
        bounds: limits of size, depth and branching.
    """
    sizes = sorted(bounds.sizes) if bounds.sizes else grid(bounds.size)
    trees: dict[TreeShape, None] = {}
    for table in (rates, rates[0]):
        frontier = optimal_frontier(table, max(sizes), depth=bounds.depth)
        tokens = frontier.values
        for depth in grid(bounds.depth):
            if depth >= len(tokens):
                break
            for size in sizes:
                if size > 1 and tokens[depth, size] > max(tokens[depth - 1, size], 0.0):
                    trees[frontier.shape(size, depth)] = None
    return [shape for shape in trees if bounds.allow(shape)]


def chains(bounds: Bounds) -> list[TreeShape]:
    """All chains within these bounds, the shortest first."""
    deepest = min(bounds.depth, bounds.size - 1)
    sizes = bounds.sizes or range(2, deepest + 2)
    return [TreeShape.chain(depth) for depth in range(1, deepest + 1) if depth + 1 in sizes]
