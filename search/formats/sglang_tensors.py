"""SGLang's verify tensors: the first child and the next sibling of every node.

Facts (sgl-project/sglang, `python/sglang/srt/speculative/eagle_utils.py`): `build_tree_kernel_efficient`
fills `retrieve_index`, `retrieve_next_token` and `retrieve_next_sibling`, int64 [batch, tokens], -1 for
none (the kernels and older versions spell them `retrive_`), and `positions` = sequence length + depth,
flat; siblings are linked in index order. **The root is counted**: it is entry 0 of every row.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from treespec.door import integer
from treespec.search.formats.errors import MalformedTree
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import (
    fields,
    integers,
    node_count,
    read_json,
    shape_of,
    shown,
)
from treespec.shape import TreeShape

__all__ = ["FORMAT", "dump", "load"]

INDEX, CHILD, SIBLING = "retrive_index", "retrive_next_token", "retrive_next_sibling"


def load(data: Any) -> TreeShape:
    """Read the tensors of one tree: a dictionary of tensors or lists, or its JSON.

    Both spellings (`retrive_`, `retrieve_`) are read. `retrive_index` and `positions` are optional; if
    present, they must agree with the tree.

    Raises:
        MalformedTree: if the tensors hold several trees, or do not describe a tree: a node is reached twice
            or not at all, a child precedes its parent, or siblings are out of order.

    Example:
        >>> load({"retrive_next_token": [1, -1, -1], "retrive_next_sibling": [-1, 2, -1]}).parents
        (-1, 0, 0)
    """
    given = read_json(data) if isinstance(data, str) else data
    if isinstance(given, dict):
        renamed = {str(key).replace("retrieve_", "retrive_"): key for key in given}
        if len(renamed) < len(given):
            raise MalformedTree(f"a tensor is given in both spellings: {shown(list(given))}")
        given = {name: given[key] for name, key in renamed.items()}
    tensors = fields("a tree", given, [CHILD, SIBLING], [INDEX, "positions"])
    rows = {name: _row(name, value) for name, value in tensors.items()}
    child, sibling = rows[CHILD], rows[SIBLING]
    size = len(child)
    for name, row in rows.items():
        if not row or len(row) != size:
            raise MalformedTree(
                f"{name} has {len(row)} entries, but {CHILD} has {size}: both need one for each node"
            )
    shape = shape_of(_parents(child, sibling))
    if INDEX in rows and [i - rows[INDEX][0] for i in rows[INDEX]] != list(range(size)):
        raise MalformedTree(f"{INDEX} must count up by one, not {shown(rows[INDEX])}")
    if "positions" in rows:
        depths = [p - rows["positions"][0] for p in rows["positions"]]
        if depths != list(shape.depths):
            raise MalformedTree(
                f"positions must be the root's plus the depths {shown(list(shape.depths))}, "
                f"not {shown(rows['positions'])}"
            )
    return shape


def _row(name: str, value: Any) -> list[int]:
    """The entries of one tree as plain integers."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in (torch.int32, torch.int64) or value.ndim not in (1, 2):
            raise MalformedTree(
                f"{name} must hold int32 or int64 [nodes] or [1, nodes], "
                f"not {value.dtype} {list(value.shape)}"
            )
        node_count(value.shape[-1])
        if value.ndim == 2 and value.shape[0] != 1:
            raise MalformedTree(
                f"{name} holds {value.shape[0]} trees: give the row of a single tree"
            )
        value = value.flatten().tolist()
    elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if isinstance(value, list):
        node_count(len(value))
    return integers(name, value, -1)


def _parents(child: Sequence[int], sibling: Sequence[int]) -> list[int]:
    """The parents that first children and next siblings imply; each chain of siblings must ascend."""
    size = len(child)
    parents = [-1] + [-2] * (size - 1)
    if sibling[0] != -1:
        raise MalformedTree(f"{SIBLING}[0] = {sibling[0]}, but the root has no sibling: -1")
    for node in range(size):
        if parents[node] == -2:
            raise MalformedTree(
                f"node {node} is not the child of any earlier node, so it cannot be reached"
            )
        before, name, at = node, CHILD, node
        number = child[node]
        while number != -1:
            integer(f"{name}[{at}]", number, before + 1, MalformedTree, size - 1)
            if parents[number] != -2:
                raise MalformedTree(
                    f"{name}[{at}] = {number}, but node {number} is node {parents[number]}'s child"
                )
            parents[number] = node
            before, name, at, number = number, SIBLING, number, sibling[number]
    return parents


def dump(shape: TreeShape) -> Export:
    """The tensors of one tree whose root is at position 0; add the sequence length to `positions`.

    Example:
        >>> dump(TreeShape.expansion([2, 1])).value["retrive_next_token"]
        tensor([[ 1,  3,  4, -1, -1]])
    """
    child, sibling = [-1] * shape.size, [-1] * shape.size
    for node, children in enumerate(shape.children):
        if children:
            child[node] = children[0]
        for elder, younger in pairwise(children):
            sibling[elder] = younger
    rows: dict[str, list] = {INDEX: [list(range(shape.size))], CHILD: [child], SIBLING: [sibling]}
    rows["positions"] = list(shape.depths)
    return Export(
        json.dumps(rows),
        counts_root=True,
        notes=("positions start at 0: add the sequence length",),
        value={name: torch.tensor(row) for name, row in rows.items()},
    )


FORMAT = Format(load, dump, True, (), "first children and next siblings, as SGLang verifies them")
