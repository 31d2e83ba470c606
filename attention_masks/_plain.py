"""What this package and those above accept as an integer and as a sequence."""

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import torch
from torch import Tensor

MAX_VALUE_LENGTH = 80
"""Characters of a value in a message."""


def plain_integer(value: Any) -> int | None:
    """The value as a Python integer; None if it is not an integer.

    Numpy integers and tensors of one integer are accepted. Booleans are not, although Python treats them
    as integers, nor are integral floats, NaN or text.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool:
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # the second: a tensor without data
        return None


def plain_integers(values: Any) -> tuple[int, ...] | None:
    """The values as Python integers, in order; None if one is not an integer or they are not a sequence."""
    items = plain_items(values)
    if items is None:
        return None
    if set(map(type, items)) <= {int}:  # the usual case, at a tenth of the cost
        return items
    integers = tuple(map(plain_integer, items))
    return None if None in integers else integers  # pyrefly: ignore[bad-return]


def plain_items(values: Any) -> tuple[Any, ...] | None:
    """The items of an ordered iterable; None for text, sets, mappings and single values."""
    if isinstance(values, tuple):
        return values
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        return None
    try:
        return tuple(values)
    except TypeError:  # a tensor or an array without dimensions
        return None


def shown(value: Any, most: int = MAX_VALUE_LENGTH) -> str:
    """A value as text for a message: on one line, truncated if it is long."""
    if isinstance(value, Tensor) and (value.ndim or value.device.type == "meta"):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # integers of more than 4300 digits
        return f"a huge {'integer' if isinstance(value, int) else type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 4]} ..."
