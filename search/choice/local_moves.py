"""From one tree to the next, until nothing helps: nodes added, removed or moved, levels widened or cut."""

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
"""Nodes whose adding, and leaves whose removal, are tried one by one: those that promise most."""
NODES_PAIRED = 6
"""Of them, those that are tried together: a node moved is one removed and another added."""
NODES_TRADED = 4
"""Of them, those of which two are traded for one: neither half of that need help by itself."""
BUNDLE_SIZES = (2, 4, 8)
"""How many nodes are added, or removed, at once."""
MOST_ROUNDS = 100
"""A search ends long before: each round is a better tree."""


@dataclass(frozen=True)
class Bounds:
    """Which trees are looked at.

    Args:
        size: the most nodes, the root included.
        depth: the most edges.
        branching: the most children of a node.
        sizes: the only sizes that are allowed; None for all up to `size`.
    """

    size: int
    depth: int
    branching: int
    sizes: frozenset[int] | None = None

    def allow(self, shape: TreeShape) -> bool:
        """Whether a tree within depth and branching may be taken: it is no chain, and of a size."""
        fits = shape.size in self.sizes if self.sizes else 1 < shape.size <= self.size
        return fits and not shape.is_chain


def shape_of_paths(paths: Iterable[Path]) -> TreeShape:
    """The tree of these nodes, numbered breadth first; parents and elder siblings are among them."""
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
    """The tree from which no move leads to a faster one, reached by the best move each time.

    Args:
        start: where to begin.
        speeds: of trees.
        ends: of a tree, how many steps end at each node, by the child that was accepted behind it.
        bounds: which trees are looked at.
    """
    best, speed = start, float(speeds([start])[0])
    for _ in range(MOST_ROUNDS):
        near = [shape for shape in neighbours(best, ends(best), bounds) if bounds.allow(shape)]
        if not near:
            break
        near_speeds = speeds(near)
        first = int(near_speeds.argmax())
        if not near_speeds[first] > speed * (1 + 1e-9):
            break
        best, speed = near[first], float(near_speeds[first])
    return best


def neighbours(
    shape: TreeShape, ends: Int[np.ndarray, "nodes ranks"], bounds: Bounds
) -> list[TreeShape]:
    """The trees one move away, each once.

    One node more promises as many tokens as steps end where it would be; one less loses those that end at
    it. Those that promise most and lose least are tried one by one, several at once, traded for each other,
    one or two for one or two, as are whole levels.

    Args:
        shape: the tree.
        ends: see `climb`.
        bounds: of depth and branching; sizes are left to `Bounds.allow`.
    """
    paths = paths_of(shape)
    kept, made = frozenset(paths), set()
    for change in _changes(shape, paths, ends, bounds):
        if change != kept and len(change) <= bounds.size:
            made.add(change)
    return [shape_of_paths(change) for change in sorted(made, key=sorted)]


def _changes(
    shape: TreeShape, paths: list[Path], ends: np.ndarray, bounds: Bounds
) -> Iterator[frozenset[Path]]:
    kept = frozenset(paths)
    more = [(paths[node], node, len(below)) for node, below in enumerate(shape.children)]
    more = [one for one in more if len(one[0]) < bounds.depth and one[2] < bounds.branching]
    more.sort(key=lambda one: -ends[one[1], one[2]] if one[2] < ends.shape[1] else 0)
    added = [(*path, rank) for path, _, rank in more[:NODES_ALONE]]
    spare = [node for node in shape.leaves if node and _youngest(shape, node)]
    spare.sort(key=lambda node: ends[node].sum())
    removed = [paths[node] for node in spare[:NODES_ALONE]]
    for path in added:
        yield kept | {path}
        if len(path) < bounds.depth:
            yield kept | {path, (*path, 0)}
    for path in removed:
        yield kept - {path}
    for number in BUNDLE_SIZES:
        yield kept | set(added[:number])
        yield kept - set(removed[:number])
    pairs = product(removed[:NODES_PAIRED], added[:NODES_PAIRED])
    for out, into in (
        *(((one,), (other,)) for one, other in pairs),
        *product(combinations(removed[:NODES_TRADED], 2), ((one,) for one in added[:NODES_TRADED])),
        *product(((one,) for one in removed[:NODES_TRADED]), combinations(added[:NODES_TRADED], 2)),
    ):
        if all(_apart(one, other) for one, other in product(out, into)):
            yield (kept - {*out}) | {*into}
    for level in range(shape.depth + 1):
        yield from _level_changes(shape, paths, kept, level, bounds)


def _apart(out: Path, into: Path) -> bool:
    """Whether a node can be added where a leaf is removed: not below it, nor as its next sibling."""
    return into[: len(out)] != out and into != (*out[:-1], out[-1] + 1)


def _level_changes(
    shape: TreeShape, paths: list[Path], kept: frozenset[Path], level: int, bounds: Bounds
) -> Iterator[frozenset[Path]]:
    """A child more, or the youngest less, for each node of a level; all below a level cut off."""
    nodes = [node for node in range(shape.size) if shape.depths[node] == level]
    if level < bounds.depth:
        for chosen in (nodes, [node for node in nodes if shape.children[node]]):
            wider = {(*paths[node], len(shape.children[node])) for node in chosen}
            yield kept | {path for path in wider if path[-1] < bounds.branching}
    last = [shape.children[node][-1] for node in nodes if shape.children[node]]
    yield kept - {paths[node] for node in last if not shape.children[node]}
    if level:
        yield frozenset(path for path in kept if len(path) <= level)


def _youngest(shape: TreeShape, node: int) -> bool:
    return shape.children[shape.parents[node]][-1] == node
