"""Read integers as input, with a default upper limit."""

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
    """The value as a plain integer, as `treespec.door.integer` reads it, with a default upper limit.

    Args:
        name: name of the setting, for the message.
        value: the given value.
        least: the smallest allowed value.
        error: the class of error to raise.
        most: the largest allowed value.

    Raises:
        InvalidLimit: or `error`, with the given value and the allowed range.
    """
    return door.integer(name, value, least, error, most)
