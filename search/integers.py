"""Whole numbers as input, none beyond all sizes."""

from typing import Any

from treespec import door
from treespec.search.arguments import LARGEST_NUMBER
from treespec.search.errors import InvalidLimit, SearchError

__all__ = ["integer"]


def integer(
    name: str,
    value: Any,
    least: int,
    error: type[SearchError] = InvalidLimit,
    most: int = LARGEST_NUMBER,
) -> int:
    """The value as a plain integer, as `treespec.door.integer` takes it, with a largest.

    Args:
        name: of the setting, for the message.
        value: what was given.
        least: the smallest that is allowed.
        error: what is raised.
        most: the largest.

    Raises:
        InvalidLimit: or `error`, saying what was given and what is allowed.
    """
    return door.integer(name, value, least, error, most)
