"""Trees worth a replay: of every size and depth those that are best under the rates of a trace."""

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
"""Trials of the rate of all depths that each depth's rate gets: deep levels have few of their own."""
SIZE_RATIO = 1.35
"""How much larger, or deeper, the next tree of a grid is. Local moves go between."""


def grid(largest: int) -> list[int]:
    """All numbers up to 6, and then some up to the largest.

    Example:
        >>> grid(24)
        [1, 2, 3, 4, 5, 6, 8, 10, 14, 19, 24]
    """
    numbers, at = set(range(1, min(largest, 6) + 1)), 6.0
    while at < largest:
        at *= SIZE_RATIO
        numbers.add(min(int(at), largest))
    return sorted(numbers)


def rates_at(
    trace: Trace,
    starts: Int[np.ndarray, "starts"],
    texts: Bool[np.ndarray, "texts"],
    bounds: Bounds,
) -> Float[np.ndarray, "levels ranks"]:
    """Rates by depth and rank of steps that begin at these positions.

    Rates do not increase with the rank, which makes the search for trees quick and takes only noise away.
    Levels that no step reaches have the rates of all.

    Args:
        trace: of which the positions are.
        starts: positions that steps begin at.
        texts: those that count.
        bounds: of depth and branching.
    """
    mine = starts[texts[trace.text_of[starts]]]
    mass, trials = np.zeros((2, bounds.depth, bounds.branching))
    by_depth, by_text = rates_from(trace, mine, bounds.depth, bounds.branching)
    mass[: len(by_depth)], trials[: len(by_depth)] = by_depth, by_text.sum(axis=1)[:, None]
    return RateSettings(True, SHRINKAGE_TRIALS).rates(mass, trials)


def proposed(rates: Float[np.ndarray, "levels ranks"], bounds: Bounds) -> list[TreeShape]:
    """The tree of most expected tokens of every size within every depth (`optimal_frontier`), on a grid.

    By rates by depth and rank, and by those of the first level at every depth. What is proposed is valued
    by replay, so rates that mislead cost nothing but time.

    Args:
        rates: by depth and rank, which do not increase with the rank.
        bounds: of size, depth and branching.
    """
    sizes = sorted(bounds.sizes) if bounds.sizes else grid(bounds.size)
    made: dict[TreeShape, None] = {}
    for table in (rates, rates[0]):
        frontier = optimal_frontier(table, max(sizes), depth=bounds.depth)
        rows = frontier.values
        for depth in grid(bounds.depth):
            if depth >= len(rows):
                break
            for size in sizes:
                if size > 1 and rows[depth, size] > max(rows[depth - 1, size], 0.0):
                    made[frontier.shape(size, depth)] = None
    return [shape for shape in made if bounds.allow(shape)]


def chains(bounds: Bounds) -> list[TreeShape]:
    """All chains within these bounds, the shortest first."""
    deepest = min(bounds.depth, bounds.size - 1)
    allowed = bounds.sizes or range(2, deepest + 2)
    return [TreeShape.chain(deep) for deep in range(1, deepest + 1) if deep + 1 in allowed]
