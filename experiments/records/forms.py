"""Forms of JSON data: declare what a file must hold, and find the first place where it does not.

A form is a `Kind`, a mapping of keys to forms (a key that ends with `?` may be missing), `each(form)` for a
list or `by_name(form)` for an object. Keys that a form does not name are ignored, because newer versions
may write more.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError, Unreadable
from treespec.reading import in_json, parse_json, read_bytes

__all__ = [
    "ANY", "COUNT", "DATA", "NAME", "NUMBER", "TEXT", "TRUTH", "Kind", "by_name", "each", "fits", "or_null",
    "parsed",
]  # fmt: skip

Form = Any
"""A `Kind` or a mapping of keys to forms."""


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    Args:
        words: what messages call it, such as `a number`.
        holds: tells whether a value is of this kind.
        inner: the form of each entry of a list or an object; or, with `whole`, of the object itself.
        whole: whether `inner` applies to the object itself.
    """

    words: str
    holds: Callable[[Any], bool]
    inner: Form = None
    whole: bool = False


ANY = Kind("anything", lambda value: True)
TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("text that is not empty", lambda value: isinstance(value, str) and value != "")
TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind(
    "a whole number of at least 0", lambda value: type(value) is int and 0 <= value < 2**63
)
NUMBER = Kind(
    "a finite number of at least 0",
    lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0,
)
DATA = Kind("an object", lambda value: isinstance(value, dict))


def each(form: Form) -> Kind:
    """A list whose entries have this form."""
    return Kind("a list", lambda value: isinstance(value, list), form)


def by_name(form: Form) -> Kind:
    """An object whose values have this form, under arbitrary names."""
    return Kind("an object", lambda value: isinstance(value, dict), form)


def or_null(form: Form) -> Kind:
    """Data of this form, or null."""
    kind = Kind(DATA.words, DATA.holds, form, True) if isinstance(form, Mapping) else form
    return Kind(
        f"{kind.words} or null",
        lambda value: value is None or kind.holds(value),
        kind.inner,
        kind.whole,
    )


def parsed(path: Path, error: type[TreespecError], way_out: str = "", form: Form = ANY) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        error: the class of the error to raise.
        way_out: what the user can do, for the message; empty if the caller adds it or handles the error.
        form: what the file must hold; by default anything.

    Raises:
        TreespecError: `error`, if the file cannot be read, is not JSON, or does not have this form.
    """
    advice = f"; {way_out}" if way_out else ""
    try:
        content = read_bytes(path)
    except Unreadable as problem:
        raise error(f"{problem}{advice}") from problem
    try:
        data = parse_json(content, constants=True)
    except Unreadable as problem:
        raise error(f"{path} is damaged: not JSON: {problem}{advice}") from problem
    if misfit := fits(data, form):
        raise error(f"{path} is damaged: {misfit}{advice}")
    return data


def fits(data: Any, form: Form, path: str = "") -> str | None:
    """The first misfit of data with a form, such as `key = value, but must be ...`; None if it fits."""
    return next(_misfits(data, form, path), None)


def _misfits(data: Any, form: Form, path: str) -> Iterator[str]:
    kind = DATA if isinstance(form, Mapping) else form
    if not kind.holds(data):
        yield f"{path or 'it'} = {in_json(data)}, but must be {kind.words}"
    elif isinstance(form, Mapping):
        for name, inner in form.items():
            key = name.removesuffix("?")
            if key in data:
                yield from _misfits(data[key], inner, f"{path}.{key}" if path else key)
            elif name == key:
                yield f"{path}.{key} is missing".removeprefix(".")
    elif kind.whole and data is not None:
        yield from _misfits(data, kind.inner, path)
    elif kind.inner is not None and isinstance(data, list):
        for i, value in enumerate(data):
            yield from _misfits(value, kind.inner, f"{path}[{i}]")
    elif kind.inner is not None and data is not None:
        for key, value in data.items():
            yield from _misfits(value, kind.inner, f"{path}.{key}")
