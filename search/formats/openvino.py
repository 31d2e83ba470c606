"""OpenVINO GenAI's `GenerationConfig`: depth, width and size of its EAGLE-3 trees, but not their shapes.

`branching_factor` counts the children that are drafted at each of the nodes that a level keeps, and
`tree_depth` the levels below the root. `num_assistant_tokens` counts the draft tokens that a step verifies:
**the root is not counted**.
"""

import json
from typing import Any

from treespec.checks import integer
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import MAX_NODES, MalformedTree, fields, read_json
from treespec.search.formats.top_k import SHAPE, TopK
from treespec.tree.shape import TreeShape

FIELDS = ["branching_factor", "tree_depth", "num_assistant_tokens"]


def load(data: Any) -> TreeShape:
    """The shape, if the settings permit only one: a chain (one branch) or a single level (depth 1).

    Raises:
        MalformedTree: if the settings are not those three numbers, as a dictionary or its JSON.
        NoShape: if the tree depends on the drafted tokens.
    """
    given = fields("settings", read_json(data) if isinstance(data, str) else data, FIELDS)
    numbers = [integer(name, given[name], 1, MalformedTree, MAX_NODES) for name in FIELDS]
    return TopK(*numbers).shape()


def dump(shape: TreeShape) -> Export:
    """The settings of the smallest search that can draw the shape.

    Raises:
        NotExportable: if the shape is the root alone.

    Example:
        >>> print(dump(TreeShape.chain(3)).content)
        {"branching_factor": 1, "tree_depth": 3, "num_assistant_tokens": 3}
    """
    numbers = TopK.of(shape)
    value = dict(zip(FIELDS, (numbers.k, numbers.depth, numbers.drafts), strict=True))
    return Export(json.dumps(value), counts_root=False, lost=numbers.lost, value=value)


FORMAT = Format(load, dump, False, (SHAPE,), "OpenVINO GenAI's GenerationConfig")
