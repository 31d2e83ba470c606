"""Lists of rank paths, the notation of Medusa and EAGLE-1, without the root.

A node is written as the ranks that lead to it: `[0, 2]` is the third child of the first child. Facts:
FasterDecoding/Medusa `medusa/model/medusa_choices.py` holds such lists in the order in which a search found
them, `generate_medusa_buffers` in `medusa/model/utils.py` sorts them by (length, path); SafeAILab/EAGLE
`eagle/model/choices.py` has the same notation. **The root is not counted**: `mc_sim_7b_63` has 63 paths and
verifies 64 tokens.
"""

import re
from collections.abc import Iterable
from typing import Any

from treespec.errors import InvalidTree
from treespec.search.formats.export import NUMBERING, Export, Format, numbering
from treespec.search.formats.reading import (
    MAX_NODES,
    MalformedTree,
    integers,
    node_count,
    read_json,
    shown,
)
from treespec.tree.shape import TreeShape

_NAME = re.compile(r"\s*[A-Za-z_]\w*\s*=")
_TUPLES = str.maketrans("()", "[]")
_LAST_COMMA = re.compile(r",(?=\s*\])")


def load(data: Any) -> TreeShape:
    """Read rank paths, in any order: the text of a list (also `name = [(0,), ...]`), or the list.

    The nodes are numbered by (length, path). A text is parsed as JSON and never evaluated.

    Raises:
        MalformedTree: if it is not such a list, or a parent or an elder sibling is missing: a child's rank
            is its index among its siblings, so `[[0], [2]]` does not describe a shape.

    Example:
        >>> load("tree = [(0,), (0, 0), (1,)]").parents
        (-1, 0, 0, 1)
    """
    if isinstance(data, str):
        text = _NAME.sub("", data, count=1) if _NAME.match(data) else data
        data = read_json(_LAST_COMMA.sub("", text.translate(_TUPLES)))
    if not isinstance(data, list | tuple):
        raise MalformedTree(f"expected a list of rank paths, got {shown(data)}")
    node_count(len(data) + 1)
    paths = [integers(f"path {i}", path, 0, MAX_NODES) for i, path in enumerate(data)]
    if any(len(path) >= MAX_NODES for path in paths):
        raise MalformedTree(f"a path has more than {MAX_NODES - 1} ranks")
    try:
        return TreeShape.from_paths(paths)
    except InvalidTree as error:
        raise MalformedTree(str(error)) from error


def dump(shape: TreeShape) -> Export:
    """The path of every node but the root, by (length, path).

    Example:
        >>> print(dump(TreeShape.expansion([2, 1])).content)
        [[0], [1], [0, 0], [1, 0]]
    """
    level: Iterable[tuple[int, list[int]]] = [(0, [])]
    paths: list[list[int]] = []
    while level:
        level = [
            (child, [*path, rank])
            for node, path in level
            for rank, child in enumerate(shape.children[node])
        ]
        paths += [path for _, path in level]
    return Export(str(paths), counts_root=False, lost=numbering(shape), value=paths)


FORMAT = Format(load, dump, False, (NUMBERING,), "rank paths of Medusa and EAGLE-1: [[0], [0, 0]]")
