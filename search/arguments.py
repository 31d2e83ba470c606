"""Refuse arguments of the wrong type with a one-sentence error, before a function is called."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar

import numpy as np

from treespec.checks import LARGEST_INTEGER, shown
from treespec.search.errors import InvalidLimit, SearchError
from treespec.tree.shape import TreeShape

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Kind:
    """A kind of argument.

    Args:
        words: its description in messages, such as `a tree (TreeShape)`.
        holds: whether a value is of this kind.
    """

    words: str
    holds: Callable[[Any], bool]


def _within(value: Any, least: int, most: int = LARGEST_INTEGER) -> bool:
    # A tensor would pass on as it is, and is no key of a table of times.
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(whole and least <= value <= most)


def _number(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


COUNT = Kind(f"an integer in 1..{LARGEST_INTEGER}", lambda value: _within(value, 1))
LEVELS = Kind("an integer in 1..4096", lambda value: _within(value, 1, 4096))
PREFIX = Kind(f"an integer in 0..{LARGEST_INTEGER}", lambda value: _within(value, 0))
NUMBER = Kind("a finite number", _number)
FLAG = Kind("True or False", lambda value: isinstance(value, bool | np.bool_))
TEXT = Kind("text", lambda value: isinstance(value, str))
PATH = Kind("a path", lambda value: isinstance(value, str | PathLike) and str(value) != "")
SHAPE = Kind("a tree (treespec.TreeShape)", lambda value: isinstance(value, TreeShape))
MAPPING = Kind("a mapping", lambda value: isinstance(value, Mapping))


def of_class(words: str, *types: type | str) -> Kind:
    """The kind of objects of these classes, which may be given by name if they cannot be imported."""
    names = {kind if isinstance(kind, str) else kind.__name__ for kind in types}
    return Kind(words, lambda value: any(kind.__name__ in names for kind in type(value).__mro__))


def maybe(kind: Kind) -> Kind:
    """The kind that permits None, too."""
    return Kind(f"{kind.words} or None", lambda value: value is None or kind.holds(value))


def takes(
    error: type[SearchError] = InvalidLimit, **kinds: Kind
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function to refuse arguments of other kinds.

    Args:
        error: the class of error to raise.
        kinds: the kind of each checked parameter, by name.
    """

    def wrap(function: Callable[_P, _R]) -> Callable[_P, _R]:
        names = list(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                kind = kinds.get(name)
                if kind is not None and not kind.holds(value):
                    raise error(f"{name} = {shown(value)}, but must be {kind.words}")
            return function(*args, **kwargs)

        return checked

    return wrap
