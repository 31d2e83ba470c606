"""Checks that the loaders share. They take what strangers wrote: every size is bounded first."""

import json
import reprlib
from collections.abc import Iterable
from typing import Any, NoReturn

from search.formats.errors import MalformedTree
from treespec.errors import InvalidTree
from treespec.json_words import why_no_json
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


def shown(value: Any) -> str:
    """The value, cut short enough for a message."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    try:
        return short.repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"a huge {type(value).__name__}"


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
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        at = f", at {shown(text[error.pos :][:40])}" if text[error.pos :].strip() else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedTree(f"{where}: {why_no_json(error, place=False)}{at}") from None
    except RecursionError:
        raise MalformedTree("brackets are nested too deeply for a tree file") from None
    except InvalidTree:
        raise
    except ValueError as error:
        raise MalformedTree(why_no_json(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedTree(f"the key {shown(key)} stands twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise MalformedTree(f"{name} is no number of a tree")


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
