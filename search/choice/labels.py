"""Short names of the trees of a ranking: their numbers of nodes at each level."""

from collections import Counter
from collections.abc import Iterable, Sequence

from treespec.shape import TreeShape

__all__ = ["tree_names"]

LONGEST_NAME = 40
"""Characters of a name; longer ones are cut."""


def tree_names(shapes: Iterable[TreeShape]) -> list[str]:
    """Name each tree by its numbers of nodes at depths 1, 2, ...: `3+4` for a tree of 8 nodes.

    Trees that share this name get the children of each node appended, level by level from depth 1 on,
    without trailing leaves: `3+4 (3,1)`.

    Args:
        shapes: trees; equal trees get equal names.

    Example:
        >>> tree_names([TreeShape.kary(2, 2), TreeShape.chain(2)])
        ['2+4', '1+1']
        >>> tree_names(TreeShape((-1, 0, 0, 0, 1, 1, 1, last)) for last in (1, 2))
        ['3+4 (4)', '3+4 (3,1)']
    """
    shapes = list(shapes)
    counted = {shape: _children_by_level(shape) for shape in shapes}
    widths = {shape: "+".join(str(sum(level)) for level in counted[shape]) for shape in counted}
    sharing = Counter(widths.values())
    names = {
        shape: name + (_children_suffix(counted[shape]) if sharing[name] > 1 else "")
        for shape, name in widths.items()
    }
    return [_cut(names[shape]) for shape in shapes]


def _children_by_level(shape: TreeShape) -> list[list[int]]:
    """The number of children of every node, level by level, without the last level."""
    nodes, by_level = [0], []
    while True:
        by_level.append([len(shape.children[node]) for node in nodes])
        nodes = [child for node in nodes for child in shape.children[node]]
        if not nodes:
            return by_level[:-1]


def _children_suffix(counts: Sequence[Sequence[int]]) -> str:
    """The children of nodes from depth 1 on, in brackets; empty for a tree of one level."""
    levels = []
    for level in counts[1:]:
        last = max(place for place, number in enumerate(level) if number)
        levels.append(",".join(map(str, level[: last + 1])))
    return f" ({' / '.join(levels)})" if levels else ""


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
