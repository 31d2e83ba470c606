"""Our own JSON: {"version", "parents", "order"}, without anything that can be derived.

The root is counted: it is node 0, and `parents[0]` is -1. Every shape is preserved, numbering included.
"""

from typing import Any

from treespec.checks import integer
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import (
    MalformedTree,
    fields,
    integers,
    node_count,
    read_json,
    shape_of,
)
from treespec.tree.shape import TreeShape


def load(data: Any) -> TreeShape:
    """Read a tree that `dump` wrote: the text, or the dictionary in it.

    Raises:
        MalformedTree: if the input is not such a tree.
    """
    tree = fields(
        "a tree",
        read_json(data) if isinstance(data, str) else data,
        ["version", "parents", "order"],
    )
    integer("version", tree["version"], 1, MalformedTree, 1)
    if tree["order"] != "node":
        raise MalformedTree(f"order = {tree['order']!r}, but must be 'node'")
    if isinstance(tree["parents"], list):
        node_count(len(tree["parents"]))
    return shape_of(integers("parents", tree["parents"], -1))


def dump(shape: TreeShape) -> Export:
    """The shape as JSON.

    Example:
        >>> print(dump(TreeShape.kary(2, 1)).content)
        {"version": 1, "parents": [-1, 0, 0], "order": "node"}
    """
    value = {"version": 1, "parents": list(shape.parents), "order": "node"}
    return Export(shape.to_json(), counts_root=True, value=value)


FORMAT = Format(load, dump, True, (), "JSON of this project: the parent of every node")
