"""Checks that the loaders share. They take what strangers wrote: every size is bounded first."""

from collections.abc import Iterable
from typing import Any

from treespec.door import shown
from treespec.errors import InvalidTree, Unreadable
from treespec.reading import parse_json
from treespec.search.formats.errors import MalformedTree
from treespec.shape import TreeShape

__all__ = [
    "MAX_NODES",
    "MAX_TEXT",
    "fields",
    "integer",
    "integers",
    "node_count",
    "read_json",
    "shape_of",
    "shown",
    "text_of",
]

MAX_NODES = 4096
"""Nodes of a tree that comes from outside, the root included; engines verify a few hundred."""

MAX_TEXT = 32 * 2**20
"""Bytes of a text."""


def text_of(data: Any, what: str) -> str:
    """The text itself, or the text in some bytes; `what` is what would have been read from it."""
    if isinstance(data, str):
        return data
    if isinstance(data, bytes | bytearray):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedTree(
                f"byte {error.start} is not UTF-8, but {what} is a text file"
            ) from None
    raise MalformedTree(f"{what} is expected, not {type(data).__name__} {shown(data)}")


def read_json(text: str) -> Any:
    """The object in a JSON text; keys that stand twice, NaN and deep nesting are refused."""
    try:
        return parse_json(text)
    except Unreadable as error:
        where = "" if error.line is None else f"line {error.line}, column {error.column}: "
        raise MalformedTree(f"{where}no JSON: {error.said}") from None


def fields(what: str, data: Any, needed: Iterable[str], others: Iterable[str] = ()) -> dict:
    """The dictionary itself, if it has the needed keys and none but these and the others."""
    needed, others = list(needed), list(others)
    if not isinstance(data, dict):
        raise MalformedTree(f"{what} must be an object with the keys {needed}, not {shown(data)}")
    for key in needed:
        if key not in data:
            raise MalformedTree(
                f"{what} has no {key!r}: it has {shown(list(data))}, needs {needed}"
            )
    for key in data:
        if key not in needed and key not in others:
            raise MalformedTree(f"{what} has the key {shown(key)}: allowed are {needed + others}")
    return data


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value, if it is a plain integer in the range; truth values and floats are not."""
    bound = f"at least {least}" if most is None else f"in {least}..{most}"
    if type(value) is not int:
        raise MalformedTree(f"{name} = {shown(value)}, but must be an integer {bound}")
    if value < least or (most is not None and value > most):
        raise MalformedTree(f"{name} = {shown(value)}, but must be {bound}")
    return value


def integers(name: str, value: Any, least: int, most: int | None = None) -> list[int]:
    """The value as a list, if it is a list or tuple of such integers."""
    if not isinstance(value, list | tuple):
        raise MalformedTree(f"{name} must be a list of integers, not {shown(value)}")
    high = float("inf") if most is None else most
    if all(type(number) is int and least <= number <= high for number in value):
        return list(value)
    return [integer(f"{name}[{i}]", number, least, most) for i, number in enumerate(value)]


def node_count(count: int) -> int:
    """The number of nodes, root included, if it is not more than is read from outside."""
    if count > MAX_NODES:
        raise MalformedTree(
            f"the tree has {count} nodes, more than the {MAX_NODES} that are read from files; "
            "use TreeShape.from_parents for a larger one"
        )
    return count


def shape_of(parents: Iterable[int]) -> TreeShape:
    """The shape with these parents, or a `MalformedTree`."""
    try:
        return TreeShape.from_parents(parents)
    except InvalidTree as error:
        raise MalformedTree(str(error)) from error
