"""The shapes that a choice by predicted speed goes through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop

import numpy as np
from jaxtyping import Float, Int

from search.errors import InvalidLimit
from search.frontier import Frontier, optimal_frontier
from search.latency_errors import NotMeasured
from search.law_speed import LawSpeed
from treespec.shape import TreeShape

__all__ = ["Limits", "candidate_sizes", "candidates", "fastest_of_frontier"]

EVERY = 64
"""Sizes up to here are all looked at; beyond, each is 6 % larger than the one before."""
GROWTH = 1.06

KEPT = 20
"""Trees that are ranked."""

DEEPEST = 64
"""Edges of the deepest tree that is looked at when nobody says."""


@dataclass(frozen=True)
class Limits:
    """Which trees are looked at.

    Args:
        sizes: nodes, the root included; None for all that are worth it.
        max_size: the largest; None for as far as the times go.
        depth: the most edges.
        branching: the most children of a node.

    Raises:
        InvalidLimit: if a size is no integer of at least 1, or `max_size` contradicts `sizes`.
    """

    sizes: tuple[int, ...] | None = None
    max_size: int | None = None
    depth: int | None = None
    branching: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no size."""
        for name, values in (("sizes", self.sizes), ("max_size", (self.max_size,))):
            for size in values or ():
                whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
                if size is not None and not (whole and size >= 1):
                    raise InvalidLimit(f"{name} = {size!r}, but must be an integer of at least 1")
        if self.sizes is not None and not self.sizes:
            raise InvalidLimit("sizes is empty: give at least one, or leave it out")
        if self.sizes and self.max_size is not None and max(self.sizes) > self.max_size:
            raise InvalidLimit(f"sizes has {max(self.sizes)}, but max_size = {self.max_size}")

    def largest(self, covered: int | None) -> int:
        """The largest tree that is looked at, if times are known for trees of up to `covered` nodes.

        Raises:
            NotMeasured: if a larger one was asked for.
            InvalidLimit: if neither these limits nor the times have an end.
        """
        asked = max(self.sizes) if self.sizes else self.max_size
        if asked is None and covered is None:
            raise InvalidLimit(
                "the times hold for every size, so there is no largest tree: give sizes or max_size"
            )
        if asked is not None and covered is not None and asked > covered:
            raise NotMeasured(
                f"size {asked}, but times are known for trees of up to {covered} nodes, the root included, "
                f"and none is extrapolated: profile larger trees (`treespec profile --sizes`), or give "
                f"sizes or max_size of at most {covered}"
            )
        found = covered if asked is None else asked
        assert found is not None
        return int(found)


def candidates(side: LawSpeed, limits: Limits) -> tuple[list[TreeShape], list[str]]:
    """The shapes that are ranked under one law: the fastest trees of the frontier, and all chains.

    Returns:
        The shapes, and notes on what was passed over.

    Raises:
        NotMeasured, InvalidLimit: see `Limits.largest`.
    """
    latency, prefix, batch = side.times.latency, side.times.prefix, side.times.batch
    verify, own = latency.times(batch).verify, latency.law_times(side.law, batch)
    largest = limits.largest(latency.largest(prefix, law=side.law, batch=batch))
    depth = min(DEEPEST, largest - 1) if limits.depth is None else limits.depth
    depth = min(depth, side.rates.levels or depth)
    sizes = limits.sizes or candidate_sizes(
        largest, [size for curve, _ in verify.shares(prefix) for size in curve.sizes]
    )
    sizes = sorted({int(size) for size in sizes if size > 1})
    notes, shapes = [], []
    if own.level.largest(prefix) == 1:
        notes.append(f"{side.law}: chains only, since no wider level of the draft was measured")
    else:
        frontier = optimal_frontier(
            side.acceptance, largest, depth=depth, branching=limits.branching
        )
        shapes, missing = fastest_of_frontier(frontier, sizes, side.floor_s, side.step_s)
        if missing is not None:
            notes.append(f"{side.law}: a tree that may be faster was passed over: {missing}")
    chains = [TreeShape.chain(deep) for deep in range(1, min(depth, largest - 1) + 1)]
    shapes += [chain for chain in chains if limits.sizes is None or chain.size in sizes]
    notes += [f"{side.law}: {warning}" for warning in side.warnings]
    return list(dict.fromkeys(shapes)), notes


def candidate_sizes(largest: int, knots: Sequence[int] = ()) -> list[int]:
    """The sizes of trees that are looked at, 2 to `largest`.

    Args:
        largest: nodes, the root included.
        knots: sizes that were measured; behind each of them the time may climb faster.
    """
    sizes = {*range(2, min(largest, EVERY) + 1), *knots, largest}
    at = float(EVERY)
    while at < largest:
        at *= GROWTH
        sizes.add(int(at))
    return sorted(size for size in sizes if 2 <= size <= largest)


def fastest_of_frontier(
    frontier: Frontier,
    sizes: Sequence[int],
    floor_s: Callable[[Int[np.ndarray, "asked"], int], Float[np.ndarray, "asked"]],
    step_s: Callable[[TreeShape], float],
    kept: int = KEPT,
) -> tuple[list[TreeShape], NotMeasured | None]:
    """The trees of a frontier with the most tokens per second, fastest first.

    Every (size, depth) at which the depth is used has a tree. Those that could not be among the fastest
    even if their levels were narrow (`floor_s`) are not made.

    Args:
        frontier: the best tree of every size and depth.
        sizes: that are looked at.
        floor_s: a lower bound of the time of a step, by size and depth.
        step_s: the time of a step; raises `NotMeasured` where it is not known.
        kept: how many.

    Returns:
        The trees, and why one that may be faster than all of them was passed over, if one was.
    """
    asked = np.array(sizes, dtype=np.int64)
    places = []
    for depth in range(1, len(frontier.values)):
        worth = frontier.values[depth, asked]
        used = np.flatnonzero(worth > np.maximum(frontier.values[depth - 1, asked], 0.0))
        if len(used):
            speed = worth[used] / floor_s(asked[used], depth)
            places += [(-s, int(asked[i]), depth) for s, i in zip(speed, used, strict=True)]
    found: list[tuple[float, int, int]] = []
    shapes: dict[tuple[int, int], TreeShape] = {}
    missing: NotMeasured | None = None
    promise = 0.0
    for bound, size, depth in sorted(places):
        if len(found) == kept and -bound <= found[0][0]:
            break
        shape = frontier.shape(size, depth)
        try:
            speed = frontier.value(size, depth) / step_s(shape)
        except NotMeasured as reason:
            if missing is None:
                missing, promise = reason, -bound
            continue
        shapes[size, depth] = shape
        (heappush if len(found) < kept else heappushpop)(found, (speed, -size, -depth))
    ranked = sorted(found, reverse=True)
    if ranked and promise <= ranked[0][0]:
        missing = None
    return [shapes[-size, -depth] for _, size, depth in ranked], missing
