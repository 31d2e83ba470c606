"""What this package and those above accept as an integer, a sequence, and a tensor with numbers."""

import operator
import reprlib
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


def unreadable(value: Any) -> str | None:
    """Say why a tensor's numbers cannot be read directly, and what to pass instead; None if they can.

    Returns None for values that are not tensors.
    """
    if not isinstance(value, Tensor):
        return None
    if value.is_nested:
        return "is a nested tensor: give one with rows of equal length"
    if value.layout != torch.strided:
        return "is a sparse tensor: give its to_dense()"
    if value.is_quantized:
        return "is a quantized tensor: give its dequantize()"
    return None


def without_numbers(value: Any) -> str | None:
    """As `unreadable`, where numbers are read at once: a tensor on the meta device has none."""
    if isinstance(value, Tensor) and value.device.type == "meta":
        return "is a tensor on the meta device, which holds no numbers: give one with data"
    return unreadable(value)


def shown(value: Any, most: int = MAX_VALUE_LENGTH) -> str:
    """A value as text for a message: on one line, truncated if it is long."""
    if isinstance(value, Tensor) and value.is_nested:
        return f"a nested tensor {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Tensor) and (value.ndim or value.device.type == "meta"):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, type):
        return f"the type {value.__name__}"
    try:
        text = " ".join(_Short(most).repr(value).split())
    except (
        ValueError,
        RecursionError,
    ):  # Python refuses to print integers of more than 4300 digits
        return f"a huge {'integer' if isinstance(value, int) else type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


class _Short(reprlib.Repr):
    """`repr` that stops early: a list of millions is not written out only to be truncated."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = most
        self.maxstring = self.maxother = self.maxlong = 2 * most + 8
