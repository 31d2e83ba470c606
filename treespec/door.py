"""What functions ask of their arguments before they use them: one sentence for each thing that is wrong.

Python says `'list' object has no attribute 'shape'` from inside; here the argument and its value are named,
and what is allowed. The checks of shapes in signatures (jaxtyping) run in tests only: a user has these.
"""

from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import Any

from torch import Tensor

from attention_masks._integers import plain_integer
from treespec.errors import InvalidArgument, TreespecError

__all__ = ["instance", "integer", "number", "plain_integer", "sequence", "shown"]

LONGEST = 80
"""Letters of a value in a message."""


def shown(value: Any) -> str:
    """A value as it stands in a message: on one line, and cut where it is long."""
    if isinstance(value, Tensor) and (value.ndim or value.device.type == "meta"):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def integer(
    name: str, value: Any, least: int | None = None, error: type[TreespecError] = InvalidArgument
) -> int:
    """The value as a plain integer; numpy's and torch's integers count, truth values do not.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: the smallest that is allowed.
        error: what is raised.

    Raises:
        InvalidArgument: or `error`, saying what was given and what is allowed.
    """
    whole = plain_integer(value)
    if whole is None:
        raise error(f"{name} = {shown(value)} is no integer")
    if least is not None and whole < least:
        raise error(f"{name} = {whole}, but must be an integer of at least {least}")
    return whole


def number(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> float:
    """The value if it is a plain number (numpy's count); truth values, text and tensors are none.

    Raises:
        InvalidArgument: or `error`.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise error(f"{name} = {shown(value)} is no number")
    return value  # pyrefly: ignore[bad-return]  (a `Real`: compares and calculates as floats do)


def instance(
    name: str,
    value: Any,
    kind: type | tuple[type, ...],
    wanted: str,
    error: type[TreespecError] = InvalidArgument,
) -> None:
    """Refuse a value of another kind.

    Args:
        name: of the argument.
        value: what was given.
        kind: what it must be.
        wanted: the same in words, with an article.
        error: what is raised.

    Raises:
        InvalidArgument: or `error`.
    """
    if not isinstance(value, kind):
        raise error(f"{name} = {shown(value)} is a {type(value).__name__}, but must be {wanted}")


def sequence(
    name: str, value: Any, of: str, error: type[TreespecError] = InvalidArgument
) -> tuple[Any, ...]:
    """The items of anything that has them in an order.

    Args:
        name: of the argument.
        value: what was given.
        of: what the items are, in words.
        error: what is raised.

    Raises:
        InvalidArgument: or `error`, for text, sets, mappings and single values.
    """
    unordered = isinstance(value, str | bytes | Mapping | Set)
    if unordered or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise error(f"{name} = {shown(value)}, but must be a sequence of {of}")
    return tuple(value)
