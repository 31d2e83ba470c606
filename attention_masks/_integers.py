"""What counts as a whole number when somebody gives one: for this package and those above it."""

import operator
from typing import Any

import torch

__all__ = ["plain_integer", "plain_integers"]


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
    try:
        given = tuple(values)
    except TypeError:
        return None
    if set(map(type, given)) <= {int}:  # the usual case, at a tenth of the cost
        return given
    found = tuple(map(plain_integer, given))
    return None if None in found else found  # pyrefly: ignore[bad-return]
