"""Lists of rank paths, the notation that Medusa, EAGLE-1, vLLM and TensorRT-LLM share.

A node is written as the ranks that lead to it: `(0, 2)` is the third child of the first child. The root is
implied, so n paths describe a tree of n + 1 nodes. This module reads such lists from text, without
evaluating it, and writes them.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from treespec.errors import InvalidTree
from treespec.search.formats.errors import MalformedTree
from treespec.search.formats.reading import MAX_NODES, integers, node_count, shown
from treespec.shape import TreeShape

__all__ = ["from_paths", "from_text", "to_paths"]

_START = re.compile(r"\s*(?:[A-Za-z_]\w*\s*=\s*)?([\[(])\s*")
_PATH = re.compile(r"([\[(])([0-9,\s]*)([\])])\s*(,?)\s*")
_END = re.compile(r"([\])])\s*")
_PAIRS = {"[": "]", "(": ")"}


def from_paths(paths: Any) -> TreeShape:
    """The shape with these paths, in any order; numbered by (length, path).

    Raises:
        MalformedTree: if they are not lists of ranks, or a parent or an elder sibling is missing: a child's
            rank is its index among its siblings, so `[(0,), (2,)]` does not describe a shape.
    """
    if not isinstance(paths, list | tuple):
        raise MalformedTree(f"expected a list of rank paths, got {shown(paths)}")
    node_count(len(paths) + 1)
    for i, path in enumerate(paths):
        if isinstance(path, list | tuple) and len(path) >= MAX_NODES:
            raise MalformedTree(f"path {i} has {len(path)} ranks: at most {MAX_NODES - 1}")
    checked = [integers(f"path {i}", path, 0, MAX_NODES) for i, path in enumerate(paths)]
    try:
        return TreeShape.from_paths(checked)
    except InvalidTree as error:
        raise MalformedTree(str(error)) from error


def from_text(text: str) -> TreeShape:
    """The shape written as `[[0], [0, 1]]` or `[(0,), (0, 1)]`, optionally preceded by `name = `.

    Only brackets, commas and digits are parsed; nothing is evaluated.

    Raises:
        MalformedTree: with the position of the first unexpected character.
    """
    return from_paths(list(_paths(text)))


def _paths(text: str) -> Iterator[list[int]]:
    start = _START.match(text)
    if not start:
        raise MalformedTree(
            f"not a list of rank paths: it must start with '[', not {shown(text[:40])}"
        )
    at, closed, count = start.end(), False, 0
    while True:
        end = _END.match(text, at)
        if end and end[1] == _PAIRS[start[1]]:
            if text[end.end() :].strip():
                raise _stop(text, end.end(), "nothing may follow the list")
            return
        if closed:
            raise _stop(text, at, f"a comma or '{_PAIRS[start[1]]}' must follow a path")
        path = _PATH.match(text, at)
        if not path or path[3] != _PAIRS[path[1]]:
            raise _stop(text, at, "a path such as [0, 1] or (0, 1) must stand here")
        yield _ranks(text, at, path[1], path[2])
        count += 1
        node_count(count + 1)
        at, closed = path.end(), not path[4]


def _ranks(text: str, at: int, bracket: str, body: str) -> list[int]:
    parts = [part.strip() for part in body.split(",")]
    if len(parts) == 1 and bracket == "(" and parts[0]:
        raise _stop(text, at, f"({parts[0]}) is a number in Python, not a path: ({parts[0]},)")
    if not parts[-1]:  # a comma at the end, or nothing at all
        parts.pop()
    for part in parts:
        if not part.isdigit() or len(part) > 9:
            raise _stop(text, at, f"{shown(part)} is not a rank, an integer of at least 0")
    return [int(part) for part in parts]


def _stop(text: str, at: int, problem: str) -> MalformedTree:
    return MalformedTree(f"character {at}: {problem}; found {shown(text[at : at + 40])}")


def to_paths(shape: TreeShape) -> list[tuple[int, ...]]:
    """The path of every node but the root, by (length, path).

    Example:
        >>> to_paths(TreeShape.from_parents([-1, 0, 1, 0]))
        [(0,), (1,), (0, 0)]
    """
    level: Iterable[tuple[int, tuple[int, ...]]] = [(0, ())]
    paths: list[tuple[int, ...]] = []
    while level:
        level = [
            (child, (*path, rank))
            for node, path in level
            for rank, child in enumerate(shape.children[node])
        ]
        paths += [path for _, path in level]
    return paths
