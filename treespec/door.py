"""Argument checks, each with a one-sentence error message.

Without them Python reports `'list' object has no attribute 'shape'` from deep inside. These messages name
the argument, its value and what is allowed. The shape annotations in signatures (jaxtyping) are checked in
tests only; users get the checks of this module.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from attention_masks._plain import plain_integer, plain_items, shown, unreadable, without_numbers
from treespec.errors import EmptyPrompt, InvalidArgument, InvalidPrompt, TreespecError

LARGEST_INTEGER = 2**40
"""Limit on sizes, depths and numbers of tokens, unless a smaller one applies."""


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    error: type[TreespecError] = InvalidArgument,
    most: int | None = LARGEST_INTEGER,
) -> int:
    """The value as a plain integer; numpy and torch integers are accepted, bools are not.

    `least`: the smallest allowed value, or None for no limit. `most`: the largest allowed value, or None
    for no limit. The default keeps out numbers that would overflow; messages name it only where it is
    exceeded.
    """
    plain = plain_integer(value)
    bounded = least is not None and most not in (None, LARGEST_INTEGER)
    bound = "" if least is None else f" of at least {least}"
    if bounded:
        bound = f" in {least}..{most}"
    if plain is None:
        raise error(f"{name} = {shown(value)} is not an integer{bound}")
    if least is not None and plain < least:
        raise error(f"{name} = {shown(plain)}, but must be an integer{bound}")
    if most is not None and plain > most:
        allowed = f"an integer{bound}" if bounded else f"at most {most:,}"
        raise error(f"{name} = {shown(plain)}, but must be {allowed}")
    return plain


def number(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> Any:
    """The value if it is a plain or numpy number; bools, text and tensors are refused."""
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
    """Refuse a value that is not an instance of the given type."""
    if not isinstance(value, kind):
        raise error(f"{name} = {shown(value)} is a {type(value).__name__}, but must be {wanted}")


def plainly_laid_out(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> None:
    """Refuse a tensor whose numbers cannot be read directly: sparse, nested or quantized."""
    if (reason := unreadable(value)) is not None:
        raise error(f"{name} {reason}")


def able(name: str, value: Any, methods: str, wanted: str) -> None:
    """Refuse a value that lacks a required method or attribute, for arguments of any class that has them."""
    for method in methods.split():
        if isinstance(value, type) or not hasattr(value, method):
            raise InvalidArgument(
                f"{name} = {shown(value)} has no method '{method}', but must be {wanted}"
            )


def token_ids(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> None:
    """Refuse anything but a row of integers; whether they are in a vocabulary is not checked."""
    instance(name, value, Tensor, "a tensor of token ids, torch.tensor([...])", error)
    plainly_laid_out(name, value, error)
    if value.is_floating_point() or value.dtype.is_complex or value.dtype == torch.bool:
        readable = value.numel() and value.device.type == "cpu"
        first = f" (the first is {value.flatten()[0].item()})" if readable else ""
        raise error(
            f"{name} are {value.dtype}{first}, but token ids are whole numbers: give torch.long"
        )
    if value.ndim != 1:
        raise error(f"{name} have the shape {list(value.shape)}, but must be one row [T] of ids")


def require_tokens(tokens: Any) -> None:
    """Refuse a prompt that no drafter or target can start from."""
    token_ids("the prompt's tokens", tokens, InvalidPrompt)
    if not len(tokens):
        raise EmptyPrompt(
            "the prompt has no tokens; give at least one, such as a beginning-of-text token"
        )


def sequence(
    name: str, value: Any, of: str, error: type[TreespecError] = InvalidArgument
) -> tuple[Any, ...]:
    """The items of an ordered collection as a tuple."""
    items = plain_items(value)
    if items is None:
        raise error(f"{name} = {shown(value)}, but must be a sequence of {of}")
    return items
