"""Whole numbers as input, checked in one place."""

from typing import Any

from treespec.door import plain_integer, shown
from treespec.search.arguments import LARGEST_NUMBER
from treespec.search.errors import InvalidLimit, SearchError

__all__ = ["integer"]


def integer(
    name: str,
    value: Any,
    least: int,
    error: type[SearchError] = InvalidLimit,
    most: int | None = None,
) -> int:
    """The value as a plain integer of at least `least`; numpy's integers are some, booleans are not.

    Args:
        name: of the setting, for the message.
        value: what was given.
        least: the smallest that is allowed.
        error: what is raised.
        most: the largest that is allowed, if there is one.

    Raises:
        InvalidLimit: or `error`, saying what was given and what is allowed.
    """
    number = plain_integer(value)
    if number is None or number < least:
        given = shown(value if number is None else number)
        raise error(f"{name} = {given}, but must be an integer of at least {least}")
    most = LARGEST_NUMBER if most is None else most
    if number > most:
        raise error(f"{name} = {shown(number)}, but must be at most {most:,}")
    return number
