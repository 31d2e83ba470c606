"""The shapes that a choice by predicted speed considers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop

import numpy as np
from jaxtyping import Float, Int

from treespec.search.errors import InfeasibleTree, InvalidLimit, NotMeasured
from treespec.search.latency.step_parts import StepParts
from treespec.search.traces.acceptance import Rates
from treespec.search.value.frontier import Frontier
from treespec.search.value.problem import largest_tree
from treespec.tree.shape import TreeShape

EVERY_SIZE_UP_TO = 64
"""All sizes up to this one are considered; beyond it, each is `SIZE_RATIO` times the one before."""
SIZE_RATIO = 1.06
DEPTH_RATIO = 1.35

RANKED_TREES = 20

MOST_IN_CHAINS = 2**21
"""Limit on the nodes of all considered chains together: those of depth up to 2047."""

DEEPEST_UNASKED = 64
"""Edges of the deepest tree that is considered if no depth is given."""

PROFILE_LARGER = "profile larger trees (`treespec profile --sizes 1,2,4,8,16`)"
"""The way out if times are known for one node only."""


@dataclass(frozen=True)
class Limits:
    """The requested limits on trees.

    Args:
        sizes: numbers of nodes, the root included; None for all that are worth considering.
        max_size: nodes of the largest tree; None for the largest that was measured.
        depth: maximum number of edges.
        branching: maximum number of children of a node.
    """

    sizes: tuple[int, ...] | None = None
    max_size: int | None = None
    depth: int | None = None
    branching: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that leave nothing to consider."""
        if self.sizes is not None and not self.sizes:
            raise InvalidLimit("sizes is empty: give at least one, or leave it out")
        if self.sizes and self.max_size is not None and max(self.sizes) > self.max_size:
            raise InvalidLimit(f"sizes has {max(self.sizes)}, but max_size = {self.max_size}")

    def largest(self, covered: int | None, *, strict: bool = True) -> int:
        """Nodes of the largest tree to consider, if times are known for trees of up to `covered` nodes.

        Args:
            covered: None if times hold for all sizes.
            strict: whether to refuse a request for a larger tree; otherwise it is cut to `covered`.

        Raises:
            NotMeasured: if a larger tree was asked for, and `strict`.
            InvalidLimit: if neither these limits nor the times bound the size.
        """
        asked = max(self.sizes) if self.sizes else self.max_size
        if asked is None and covered is None:
            raise InvalidLimit(
                "the times hold for every size, so there is no largest tree: give sizes or max_size"
            )
        if strict and asked is not None and covered is not None and asked > covered:
            raise NotMeasured(
                f"size {asked}, but times are known for trees of up to {covered} nodes, the root included, "
                f"and none is extrapolated: profile larger trees (`treespec profile --sizes`), or give "
                f"sizes or max_size of at most {covered}"
            )
        return int(min(size for size in (asked, covered) if size is not None))


@dataclass(frozen=True)
class Room:
    """The trees of one law that limits, rates and times permit.

    Args:
        size: nodes of the largest tree.
        depth: edges of the deepest tree.
        branching: maximum number of children of a node.
        wide: whether a draft level of several nodes was measured; otherwise only chains are considered.
    """

    size: int
    depth: int
    branching: int
    wide: bool

    @property
    def full(self) -> int:
        """Nodes of the largest tree within depth and branching, but at most `size`."""
        return largest_tree(self.depth, self.branching, self.size)

    def __str__(self) -> str:
        text = f"depth {self.depth} with {self.branching} children a node"
        return text if self.wide else f"{text} (no wider level of the draft was measured)"


def room_for(rates: Rates, parts: StepParts, limits: Limits, *, strict: bool = True) -> Room:
    """The trees that limits, rates and times permit under one law."""
    size = limits.largest(parts.largest, strict=strict)
    wide = parts.widest != 1
    branching = min(limits.branching or rates.ranks, rates.ranks) if wide else 1
    deepest = limits.depth
    if deepest is None:  # a requested size may be feasible for a chain only
        deepest = size if limits.sizes and branching == 1 else DEEPEST_UNASKED
    levels = size if rates.levels is None else rates.levels
    return Room(size, min(deepest, levels, size - 1), branching, wide)


def require_sizes(limits: Limits, rooms: Mapping[str, Room]) -> list[str]:
    """Refuse requested sizes that no tree can have under any law."""
    if limits.sizes is None:
        return []
    asked, most = max(limits.sizes), max(rooms.values(), key=lambda room: room.full)
    if asked > most.full:
        raise InfeasibleTree(
            f"sizes has {asked}, but the largest tree of {most} has {most.full} nodes: give sizes of at "
            f"most {most.full}, or allow more depth or branching"
        )
    return [
        f"{law}: no tree of {room} has more than {room.full} nodes, so larger sizes were skipped"
        for law, room in rooms.items()
        if asked > room.full
    ]


def require_trees(limits: Limits, rooms: Mapping[str, Room]) -> list[str]:
    """Refuse times of a single node, unless such small trees were asked for: there is nothing to rank."""
    if limits.sizes is not None or limits.max_size is not None or limits.depth == 0:
        return []
    narrow = [law for law, room in rooms.items() if room.size == 1]
    if narrow and len(narrow) == len(rooms):
        raise NotMeasured(
            "times are known for 1 node only, which is plain decoding, so that no tree or chain can be "
            f"compared with it: {PROFILE_LARGER}"
        )
    return [
        f"{law}: no tree or chain was considered, since times are known for 1 node only: {PROFILE_LARGER}"
        for law in narrow
    ]


def chains_within(limits: Limits, room: Room) -> list[TreeShape]:
    """All chains within the limits, the shortest first."""
    sizes = None if limits.sizes is None else set(limits.sizes)
    depths = [depth for depth in range(1, room.depth + 1) if sizes is None or depth + 1 in sizes]
    if sum(depths) > MOST_IN_CHAINS:
        raise InvalidLimit(
            f"depth = {room.depth}: more than {MOST_IN_CHAINS:,} nodes in chains of all lengths up to it; "
            "give sizes, or a smaller depth"
        )
    return [TreeShape.chain(depth) for depth in depths]


def candidate_sizes(largest: int) -> list[int]:
    """The sizes of trees to consider, from 2 to `largest`."""
    return [size for size in _grid(largest, EVERY_SIZE_UP_TO, SIZE_RATIO) if size > 1]


def candidate_depths(deepest: int) -> list[int]:
    """The depths of trees that are replayed.

    Example:
        >>> candidate_depths(24)
        [1, 2, 3, 4, 5, 6, 8, 10, 14, 19, 24]
    """
    return _grid(deepest, 6, DEPTH_RATIO)


def _grid(largest: int, all_up_to: int, factor: float) -> list[int]:
    """All numbers up to one of them, then a geometric grid up to the largest."""
    numbers, following = {*range(1, min(largest, all_up_to) + 1), largest}, float(all_up_to)
    while following < largest:
        following *= factor
        numbers.add(min(int(following), largest))
    return sorted(number for number in numbers if number >= 1)


def fastest_of_frontier(
    frontier: Frontier,
    sizes: Sequence[int],
    floor_s: Callable[[Int[np.ndarray, "asked"], int], Float[np.ndarray, "asked"]],
    step_s: Callable[[TreeShape], float],
    *,
    chains: bool = True,
) -> tuple[list[TreeShape], NotMeasured | None]:
    """The trees of a frontier with the most tokens per second, fastest first.

    There is a tree for every (size, depth) whose best tree uses the full depth. Trees that could not be
    among the fastest even if their levels were narrow (`floor_s`) are not built.
    """
    asked = np.array(sizes, dtype=np.int64)
    places = []
    for depth in range(1, len(frontier.values)):
        tokens = frontier.values[depth, asked]
        uses_depth = tokens > np.maximum(frontier.values[depth - 1, asked], 0.0)
        used = np.flatnonzero(uses_depth if chains else uses_depth & (asked > depth + 1))
        if len(used):
            speed = tokens[used] / floor_s(asked[used], depth)
            places += [(-s, int(asked[i]), depth) for s, i in zip(speed, used, strict=True)]
    fastest: list[tuple[float, int, int]] = []
    shapes: dict[tuple[int, int], TreeShape] = {}
    missing: NotMeasured | None = None
    for bound, size, depth in sorted(places):
        if len(fastest) == RANKED_TREES and -bound <= fastest[0][0]:
            break
        shape = frontier.shape(size, depth)
        try:
            speed = frontier.value(size, depth) / step_s(shape)
        except NotMeasured as reason:
            missing = missing or reason
            continue
        shapes[size, depth] = shape
        (heappush if len(fastest) < RANKED_TREES else heappushpop)(fastest, (speed, -size, -depth))
    ranked = sorted(fastest, reverse=True)
    return [shapes[-size, -depth] for _, size, depth in ranked], missing
