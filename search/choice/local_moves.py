"""Local search over trees: add, remove or move nodes, widen or cut levels, until no move helps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from treespec.shape import TreeShape

__all__ = ["Bounds", "climb", "neighbours", "shape_of_paths"]

Path: TypeAlias = tuple[int, ...]
"""Child ranks from the root to a node."""

NODES_ALONE = 12
"""Number of additions, and of removals, that are tried one by one: the most promising ones."""
NODES_PAIRED = 6
"""Number of these that are tried in pairs: moving a node is one removal and one addition."""
NODES_TRADED = 4
"""Number of these that are tried two for one: neither half of such a move need help by itself."""
BUNDLE_SIZES = (2, 4, 8)
"""Numbers of nodes that are added, or removed, at once."""
MOST_ROUNDS = 100
"""Limit on the rounds of a search, each of which finds a better tree; searches end long before it."""


@dataclass(frozen=True)
class Bounds:
    """The trees to consider.

    Args:
        size: maximum number of nodes, the root included.
        depth: maximum number of edges.
        branching: maximum number of children of a node.
        sizes: the allowed sizes; None for all up to `size`.
    """

    size: int
    depth: int
    branching: int
    sizes: frozenset[int] | None = None

    def allow(self, shape: TreeShape) -> bool:
        """Whether a tree within depth and branching has an allowed size and is not a chain."""
        fits = shape.size in self.sizes if self.sizes else 1 < shape.size <= self.size
        return fits and not shape.is_chain


def shape_of_paths(paths: Iterable[Path]) -> TreeShape:
    """The tree of these nodes, numbered breadth first. Parents and elder siblings must be among them."""
    ordered = sorted(paths, key=lambda path: (len(path), path))
    place = {path: i for i, path in enumerate(ordered)}
    return TreeShape(tuple(place[path[:-1]] if path else -1 for path in ordered))


def paths_of(shape: TreeShape) -> list[Path]:
    """The child ranks that lead to each node."""
    paths: list[Path] = [()]
    for node in range(1, shape.size):
        paths.append((*paths[shape.parents[node]], shape.ranks[node]))
    return paths


def climb(
    start: TreeShape,
    speeds: Callable[[Sequence[TreeShape]], Float[np.ndarray, "trees"]],
    ends: Callable[[TreeShape], Int[np.ndarray, "nodes ranks"]],
    bounds: Bounds,
) -> TreeShape:
    """Steepest ascent: make the best move until none leads to a faster tree.

    Args:
        start: the initial tree.
        speeds: gives the speed of each tree.
        ends: for a tree, gives the number of steps that end at each node, by the rank of the child that the
            text goes on with.
        bounds: the trees to consider.
    """
    best, speed = start, float(speeds([start])[0])
    for _ in range(MOST_ROUNDS):
        moves = [shape for shape in neighbours(best, ends(best), bounds) if bounds.allow(shape)]
        if not moves:
            break
        move_speeds = speeds(moves)
        fastest = int(move_speeds.argmax())
        if not move_speeds[fastest] > speed * (1 + 1e-9):
            break
        best, speed = moves[fastest], float(move_speeds[fastest])
    return best


def neighbours(
    shape: TreeShape, ends: Int[np.ndarray, "nodes ranks"], bounds: Bounds
) -> list[TreeShape]:
    """The trees one move away, without duplicates.

    Adding a node promises as many tokens as there are steps that end where it would be; removing one loses
    the steps that end at it. The most promising additions and the cheapest removals are tried one by one,
    several at once, and traded one or two for one or two. Whole levels are widened or cut, too.

    Args:
        shape: the tree.
        ends: see `climb`.
        bounds: limits of depth and branching; allowed sizes are left to `Bounds.allow`.
    """
    paths = paths_of(shape)
    current, neighbouring = frozenset(paths), set()
    for nodes in _changes(shape, paths, ends, bounds):
        if nodes != current and len(nodes) <= bounds.size:
            neighbouring.add(nodes)
    return [shape_of_paths(nodes) for nodes in sorted(neighbouring, key=sorted)]


def _changes(
    shape: TreeShape, paths: list[Path], ends: np.ndarray, bounds: Bounds
) -> Iterator[frozenset[Path]]:
    """The nodes of each tree one move away, with duplicates."""
    current = frozenset(paths)
    parents = [
        (node, len(children))
        for node, children in enumerate(shape.children)
        if len(paths[node]) < bounds.depth and len(children) < bounds.branching
    ]
    parents.sort(key=lambda parent: -ends[parent] if parent[1] < ends.shape[1] else 0)
    additions = [(*paths[node], rank) for node, rank in parents[:NODES_ALONE]]
    leaves = [node for node in shape.leaves if node and _youngest(shape, node)]
    leaves.sort(key=lambda node: ends[node].sum())
    removals = [paths[node] for node in leaves[:NODES_ALONE]]
    for path in additions:
        yield current | {path}
        if len(path) < bounds.depth:
            yield current | {path, (*path, 0)}
    for path in removals:
        yield current - {path}
    for number in BUNDLE_SIZES:
        yield current | set(additions[:number])
        yield current - set(removals[:number])
    one_for_one = (
        combinations(removals[:NODES_PAIRED], 1),
        combinations(additions[:NODES_PAIRED], 1),
    )
    two_for_one = (
        combinations(removals[:NODES_TRADED], 2),
        combinations(additions[:NODES_TRADED], 1),
    )
    one_for_two = (
        combinations(removals[:NODES_TRADED], 1),
        combinations(additions[:NODES_TRADED], 2),
    )
    for trade in (one_for_one, two_for_one, one_for_two):
        for removed, added in product(*trade):
            if all(_compatible(out, new) for out, new in product(removed, added)):
                yield (current - {*removed}) | {*added}
    for level in range(shape.depth + 1):
        yield from _level_changes(shape, paths, current, level, bounds)


def _compatible(removed: Path, added: Path) -> bool:
    """Whether a node can be added where a leaf is removed: not below it, nor as its next sibling."""
    next_sibling = (*removed[:-1], removed[-1] + 1)
    return added[: len(removed)] != removed and added != next_sibling


def _level_changes(
    shape: TreeShape, paths: list[Path], current: frozenset[Path], level: int, bounds: Bounds
) -> Iterator[frozenset[Path]]:
    """Add a child to each node of a level, remove its youngest, or cut off all nodes below the level."""
    nodes = [node for node in range(shape.size) if shape.depths[node] == level]
    if level < bounds.depth:
        for parents in (nodes, [node for node in nodes if shape.children[node]]):
            added = {(*paths[node], len(shape.children[node])) for node in parents}
            yield current | {path for path in added if path[-1] < bounds.branching}
    youngest = [shape.children[node][-1] for node in nodes if shape.children[node]]
    yield current - {paths[node] for node in youngest if not shape.children[node]}
    if level:
        yield frozenset(path for path in current if len(path) <= level)


def _youngest(shape: TreeShape, node: int) -> bool:
    return shape.children[shape.parents[node]][-1] == node
