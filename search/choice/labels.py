"""What trees of a ranking are called, so that one can tell them apart: by their nodes at each level."""

from collections.abc import Iterable, Sequence

from treespec.shape import TreeShape

__all__ = ["tree_names"]

LONGEST_NAME = 40
"""Letters of a name; what is longer is cut."""


def tree_names(shapes: Iterable[TreeShape]) -> list[str]:
    """A name for each tree: its nodes at depth 1, 2, ..., such as `3+4` of a tree of 8 nodes.

    Where several have the same, the children of the nodes of each level stand behind, level by level from
    depth 1 on, without the childless at the end: `3+4 (3,1)`.

    Args:
        shapes: trees; one that is named twice has the same name twice.

    Example:
        >>> tree_names([TreeShape.kary(2, 2), TreeShape.chain(2)])
        ['2+4', '1+1']
        >>> tree_names(TreeShape((-1, 0, 0, 0, 1, 1, 1, last)) for last in (1, 2))
        ['3+4 (4)', '3+4 (3,1)']
    """
    shapes = list(shapes)
    counted = {shape: _children_by_level(shape) for shape in shapes}
    widths = {shape: "+".join(str(sum(level)) for level in counted[shape]) for shape in counted}
    alike = list(widths.values())
    return [
        _cut(widths[shape] + (_behind(counted[shape]) if alike.count(widths[shape]) > 1 else ""))
        for shape in shapes
    ]


def _children_by_level(shape: TreeShape) -> list[list[int]]:
    """The number of children of every node, level by level, without the last level."""
    levels, by_level = [0], []
    while True:
        by_level.append([len(shape.children[node]) for node in levels])
        levels = [child for node in levels for child in shape.children[node]]
        if not levels:
            return by_level[:-1]


def _behind(counts: Sequence[Sequence[int]]) -> str:
    """The children of nodes from depth 1 on; nothing of a tree of one level."""
    said = []
    for level in counts[1:]:
        last = max(place for place, number in enumerate(level) if number)
        said.append(",".join(map(str, level[: last + 1])))
    return f" ({' / '.join(said)})" if said else ""


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
