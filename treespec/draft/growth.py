"""The static growth, and the laws that a growth allows. Dynamic growths live in `treespec.search`."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import Any

from jaxtyping import Float
from torch import Tensor

from treespec.errors import InvalidTree
from treespec.protocols import Growth, MarginalGrowth, PruningGrowth
from treespec.tree import Law, TreeShape

MOST_ROUNDS, MOST_DRAFTED = 2**12, 2**16
"""The most often that a growth is asked for the nodes of one tree, and the most nodes that it may ask for
besides the root: a growth that never ends is stopped there."""

NODES_UNSAID = 64
"""Nodes assumed for a tree that does not state its size."""

MOST_GROWN = 1024
"""Most nodes of a growing tree that room is reserved for; caches grow if a tree needs more."""


def laws_along(growth: object) -> frozenset[Law]:
    """The laws by which the children of a growth's trees may be chosen.

    `growth`: a growth, which may state its `laws`; a shape; or None. Returns the laws that it states, or
    all laws if it states none. For a `MarginalGrowth`, which takes the best tokens of each position, only
    DETERMINISTIC remains.
    """
    laws = frozenset(getattr(growth, "laws", Law))
    return laws & {Law.DETERMINISTIC} if isinstance(growth, MarginalGrowth) else laws


@lru_cache(maxsize=2**12)
def shape_of(parents: tuple[int, ...]) -> TreeShape:
    """The shape with these parents, cached because most shapes are drafted again and again."""
    return TreeShape(parents)


def rounds(
    growth: Growth, parents: Sequence[int], probs: Callable[[], Float[Tensor, "N"]]
) -> Iterator[list[tuple[int, int]]]:
    """Ask a growth where its tree grows until it has nothing to add; yields its checked answers.

    The caller adds the new nodes to `parents` before it asks for the next answer.

    Raises:
        InvalidTree: if an answer is invalid, or the growth does not end.
    """
    for answers in count(1):
        places = places_of(growth, shape_of(tuple(parents)), probs)
        if not places:
            return
        if answers > MOST_ROUNDS or len(parents) + sum(k for _, k in places) > MOST_DRAFTED + 1:
            raise InvalidTree(
                f"growth '{name_of(growth)}' does not end: it asks for more than {MOST_DRAFTED:,} nodes "
                f"of a tree, or more than {MOST_ROUNDS:,} times; at last `next` must return an empty list"
            )
        yield places


def places_of(
    growth: Growth, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
) -> list[tuple[int, int]]:
    """The next answer of a growth, checked to name existing nodes, each once and with a child or more."""
    # An answer may be a generator, and a generator may never end.
    places = list(islice(growth.next(shape, probs) or (), shape.size + 1))
    nodes, name = [node for node, _ in places], name_of(growth)
    if len(set(nodes)) < len(nodes):
        raise InvalidTree(f"growth '{name}' gives children to a node twice at once: {nodes}")
    for node, k in places:
        if not 0 <= node < shape.size or k < 1:
            raise InvalidTree(
                f"growth '{name}' gives {k} children to node {node} of a tree of {shape.size} nodes: "
                "it must name existing nodes, each with at least one child"
            )
    return places


def nodes_kept(
    growth: PruningGrowth, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
) -> set[int]:
    """The nodes of a complete tree that a growth keeps; refused if it names more than there are."""
    kept = list(islice(growth.keep(shape, probs), shape.size + 1))
    if len(kept) > shape.size:
        raise InvalidTree(
            f"growth '{name_of(growth)}' keeps more than the {shape.size} nodes there are"
        )
    return set(map(int, kept))


def name_of(growth: Growth) -> str:
    """The name of a growth in messages."""
    return type(growth).__name__


def nodes_of(tree: Any) -> int:
    """Nodes of a shape; for a growth or budget the most nodes that it keeps, or that its draft runs."""
    if isinstance(tree, TreeShape):
        return tree.size
    stated = {name: getattr(tree, name, None) for name in ("size", "width", "k")}
    limits = {name: value for name, value in stated.items() if isinstance(value, int)}
    size = limits.pop("size", 0)
    level = max(limits.values(), default=1)
    return min(max(size, 1 + getattr(tree, "max_depth", 0) * level), MOST_GROWN)


class StaticGrowth:
    """Grows a fixed shape, level by level.

    Args:
        shape: the shape to grow. Nodes are drafted breadth first, so the drafted tree has the numbering
            of `shape.breadth_first()`.
    """

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape.breadth_first()
        self.max_depth = shape.depth
        counts = [len(children) for children in self.shape.children]
        self._next: dict[int, list[tuple[int, int]]] = {}
        for depth in range(self.max_depth):
            level = [node for node in range(shape.size) if self.shape.depths[node] == depth]
            self._next[level[-1] + 1] = [(node, counts[node]) for node in level if counts[node]]

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The nodes of the last level that have children in the shape, with their numbers of children."""
        return self._next.get(shape.size, ())
