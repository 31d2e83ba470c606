"""Enumeration of all trees of a given size."""

from collections.abc import Iterator

from treespec.tree import TreeShape


def plane_trees(size: int) -> Iterator[TreeShape]:
    """Yield every ordered tree of `size` nodes once, numbered breadth first.

    There are Catalan(size - 1) trees: 1, 1, 2, 5, 14, 42 for sizes 1 to 6.

    Example:
        >>> [sum(1 for _ in plane_trees(size)) for size in range(1, 7)]
        [1, 1, 2, 5, 14, 42]
    """

    def grow(parents: tuple[int, ...], node: int) -> Iterator[TreeShape]:
        missing = size - len(parents)
        if not missing:
            yield TreeShape(parents)
        elif node < len(parents):
            for k in range(missing + 1):
                yield from grow(parents + (node,) * k, node + 1)

    yield from grow((-1,), 0)
