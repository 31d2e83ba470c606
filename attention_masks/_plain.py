"""What counts as a whole number or a sequence where one is given: for this package and those above."""

import operator
import reprlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "plain_integer",
    "plain_integers",
    "plain_items",
    "shown",
    "unreadable",
    "without_numbers",
]

MOST_LETTERS_OF_A_VALUE = 80
"""Letters of a value in a message."""


def plain_integer(value: Any) -> int | None:
    """The value as Python's integer, None for what is none.

    Integers of numpy and tensors of one integer are some. Truth values are not, though Python counts with
    them, nor are floats that happen to be whole, NaN or text.
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
    """The same for many, in order; None if one of them is no integer, or they are nothing to go through."""
    given = plain_items(values)
    if given is None:
        return None
    if set(map(type, given)) <= {int}:  # the usual case, at a tenth of the cost
        return given
    integers = tuple(map(plain_integer, given))
    return None if None in integers else integers  # pyrefly: ignore[bad-return]


def plain_items(values: Any) -> tuple[Any, ...] | None:
    """The items of anything that has them in an order; None for text, sets, mappings and single values."""
    if isinstance(values, tuple):
        return values
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        return None
    try:
        return tuple(values)
    except TypeError:  # a tensor or an array of one number
        return None


def unreadable(value: Any) -> str | None:
    """Why the numbers of a tensor cannot be read as they are, and what to give; None if they can.

    Anything but a tensor is left to others.
    """
    if not isinstance(value, Tensor):
        return None
    if value.is_nested:
        return "is a nested tensor: give one of rows of equal length"
    if value.layout != torch.strided:
        return "is a sparse tensor: give its to_dense()"
    if value.is_quantized:
        return "is a quantized tensor: give its dequantize()"
    return None


def without_numbers(value: Any) -> str | None:
    """The same where the numbers are read at once: a tensor on the device meta has none."""
    if isinstance(value, Tensor) and value.device.type == "meta":
        return "is a tensor on the device meta, which holds no numbers: give one with data"
    return unreadable(value)


def shown(value: Any, most: int = MOST_LETTERS_OF_A_VALUE) -> str:
    """A value as it stands in a message: on one line, and cut where it is long.

    Args:
        value: anything, however large or deep.
        most: letters.
    """
    if isinstance(value, Tensor) and value.is_nested:
        return f"a nested tensor {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Tensor) and (value.ndim or value.device.type == "meta"):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, type):
        return f"the type {value.__name__}"
    try:
        text = " ".join(_Short(most).repr(value).split())
    except (ValueError, RecursionError):  # Python writes no integer of more than 4300 digits
        return f"a huge {'integer' if isinstance(value, int) else type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


class _Short(reprlib.Repr):
    """What Python writes, but for what would be cut all the same: a list of millions is not written out."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = most
        self.maxstring = self.maxother = self.maxlong = 2 * most + 8
