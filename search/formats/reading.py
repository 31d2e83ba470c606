"""Errors of tree files, which say where, what was given and what is allowed, and checks of the loaders.

Inputs are untrusted: every size is checked first.
"""

from collections.abc import Iterable
from typing import Any

from treespec.checks import LARGEST_INTEGER, integer, shown
from treespec.errors import InvalidTree, TreespecError, Unreadable
from treespec.files import parse_json
from treespec.tree.shape import TreeShape

MAX_NODES = 4096
"""Limit on the nodes of a tree that is read, the root included; engines verify a few hundred."""

MAX_TEXT = 32 * 2**20
"""Limit on the bytes of a text."""


class FormatError(TreespecError, ValueError):
    """Base class of all errors about the formats of other tools."""


class UnknownFormat(FormatError):
    """An unknown name of a format, or an input whose format is ambiguous."""


class MalformedTree(FormatError, InvalidTree):
    """An input that does not conform to its format, or is not a tree."""


class NoShape(FormatError):
    """Settings that are valid for their engine, but do not determine a shape."""


class NotExportable(FormatError):
    """A shape that a format cannot express."""


def text_of(data: bytes | bytearray, what: str) -> str:
    """The bytes as text; `what` names the expected input in messages."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedTree(f"byte {error.start} is not UTF-8, but {what} is a text file") from None


def read_json(text: str) -> Any:
    """The object in a JSON text; duplicate keys, NaN and deep nesting are refused."""
    try:
        return parse_json(text)
    except Unreadable as error:
        where = "" if error.line is None else f"line {error.line}, column {error.column}: "
        raise MalformedTree(f"{where}not JSON: {error.said}") from None


def fields(what: str, data: Any, needed: Iterable[str], optional: Iterable[str] = ()) -> dict:
    """The dictionary itself, if it has all needed keys, and no keys beyond these and the optional ones."""
    needed, optional = list(needed), list(optional)
    if not isinstance(data, dict):
        raise MalformedTree(f"{what} must be an object with the keys {needed}, not {shown(data)}")
    for key in needed:
        if key not in data:
            raise MalformedTree(
                f"{what} has no {key!r}: it has {shown(list(data))}, needs {needed}"
            )
    for key in data:
        if key not in needed and key not in optional:
            raise MalformedTree(f"{what} has the key {shown(key)}: allowed are {needed + optional}")
    return data


def integers(name: str, value: Any, least: int, most: int = LARGEST_INTEGER) -> list[int]:
    """The value as a list, if it is a list or tuple of plain integers in the range."""
    if not isinstance(value, list | tuple):
        raise MalformedTree(f"{name} must be a list of integers, not {shown(value)}")
    if all(type(number) is int and least <= number <= most for number in value):
        return list(value)
    return [
        integer(f"{name}[{i}]", number, least, MalformedTree, most)
        for i, number in enumerate(value)
    ]


def node_count(count: int) -> int:
    """The number of nodes, the root included, if it is at most `MAX_NODES`."""
    if count > MAX_NODES:
        raise MalformedTree(
            f"the tree has {count} nodes, more than the {MAX_NODES} that are read from files; "
            "use TreeShape.from_parents for a larger one"
        )
    return count


def shape_of(parents: Iterable[int]) -> TreeShape:
    """The shape with these parents; raises `MalformedTree` if they are not those of a tree."""
    try:
        return TreeShape.from_parents(parents)
    except InvalidTree as error:
        raise MalformedTree(str(error)) from error
