"""Whole numbers as input, checked in one place."""

import operator
from typing import Any

from search.errors import InvalidLimit, SearchError
from treespec.reading import brief

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
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        shown = value if number is None else number
        raise error(f"{name} = {brief(shown)}, but must be an integer of at least {least}")
    if most is not None and number > most:
        raise error(f"{name} = {brief(number, 60)}, but must be at most {most:,}")
    return number
