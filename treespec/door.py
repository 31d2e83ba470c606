"""What functions ask of their arguments before they use them: one sentence for each thing that is wrong.

Python says `'list' object has no attribute 'shape'` from inside; here the argument and its value are named,
and what is allowed. The checks of shapes in signatures (jaxtyping) run in tests only: a user has these.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from attention_masks._plain import plain_integer, plain_items, shown, unreadable, without_numbers
from treespec.errors import EmptyPrompt, InvalidArgument, InvalidPrompt, TreespecError

__all__ = [
    "able",
    "instance",
    "integer",
    "number",
    "plain_integer",
    "plain_items",
    "plainly_laid_out",
    "require_tokens",
    "sequence",
    "shown",
    "token_ids",
    "without_numbers",
]


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    error: type[TreespecError] = InvalidArgument,
    most: int | None = None,
) -> int:
    """The value as a plain integer; numpy's and torch's integers count, truth values do not.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: the smallest that is allowed, if there is one.
        error: what is raised.
        most: the largest, likewise.

    Raises:
        InvalidArgument: or `error`, saying what was given and what is allowed.
    """
    whole = plain_integer(value)
    if whole is None:
        bound = "" if least is None else f" of at least {least}"
        raise error(f"{name} = {shown(value)} is no integer{bound}")
    if least is not None and whole < least:
        raise error(f"{name} = {shown(whole)}, but must be an integer of at least {least}")
    if most is not None and whole > most:
        raise error(f"{name} = {shown(whole)}, but must be at most {most:,}")
    return whole


def number(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> Any:
    """The value if it is a plain number (numpy's count); truth values, text and tensors are none.

    Raises:
        InvalidArgument: or `error`.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise error(f"{name} = {shown(value)} is not a number")
    return value


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


def plainly_laid_out(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> None:
    """Refuse a tensor whose numbers cannot be read as they are: sparse, nested or quantized.

    Raises:
        InvalidArgument: or `error`, with what to give.
    """
    if (why := unreadable(value)) is not None:
        raise error(f"{name} {why}")


def able(name: str, value: Any, methods: str, wanted: str) -> None:
    """Refuse what has not the methods that are called on it: for arguments of any class that has them.

    Args:
        name: of the argument.
        value: what was given.
        methods: their names, joined by spaces.
        wanted: what it must be, in words, with an article.

    Raises:
        InvalidArgument: naming what is missing.
    """
    for method in methods.split():
        if isinstance(value, type) or not hasattr(value, method):
            raise InvalidArgument(
                f"{name} = {shown(value)} has no method '{method}', but must be {wanted}"
            )


def token_ids(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> None:
    """Refuse what is no row of whole numbers; whether they are in a vocabulary is not looked at.

    Raises:
        InvalidArgument: or `error`.
    """
    instance(name, value, Tensor, "a tensor of token ids, torch.tensor([...])", error)
    plainly_laid_out(name, value, error)
    if value.is_floating_point() or value.dtype.is_complex or value.dtype == torch.bool:
        here = value.numel() and value.device.type == "cpu"
        first = f" (the first is {value.flatten()[0].item()})" if here else ""
        raise error(
            f"{name} are {value.dtype}{first}, but token ids are whole numbers: give torch.long"
        )
    if value.ndim != 1:
        raise error(f"{name} have the shape {list(value.shape)}, but must be one row [T] of ids")


def require_tokens(tokens: Any) -> None:
    """Refuse what no drafter and no target can start from.

    Raises:
        InvalidPrompt: if it is no row of whole numbers.
        EmptyPrompt: if there is none.
    """
    token_ids("the prompt's tokens", tokens, InvalidPrompt)
    if not len(tokens):
        raise EmptyPrompt(
            "the prompt has no tokens; give at least one (a beginning-of-text token, say)"
        )


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
    items = plain_items(value)
    if items is None:
        raise error(f"{name} = {shown(value)}, but must be a sequence of {of}")
    return items
