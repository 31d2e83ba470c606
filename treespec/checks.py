"""Argument checks of the functions that people call, each with a message of one sentence.

Types and shapes of all other functions stand in their signatures; `TREESPEC_STRICT=1` checks those at run
time.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from attention_masks._plain import plain_integer, plain_items, shown
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
    """The value as a plain integer in `least`..`most`; numpy and torch integers are accepted, bools not."""
    plain = plain_integer(value)
    bound = "" if least is None else f" of at least {least}"
    if least is not None and most not in (None, LARGEST_INTEGER):
        bound = f" in {least}..{most}"
    if plain is None:
        raise error(f"{name} = {shown(value)} is not an integer{bound}")
    if (least is not None and plain < least) or (most is not None and plain > most):
        raise error(f"{name} = {shown(plain)}, but must be an integer{bound}")
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


def able(name: str, value: Any, methods: str, wanted: str) -> None:
    """Refuse a value that lacks one of the methods, whose names are joined by spaces."""
    for method in methods.split():
        if isinstance(value, type) or not hasattr(value, method):
            raise InvalidArgument(
                f"{name} = {shown(value)} has no method '{method}', but must be {wanted}"
            )


def token_ids(name: str, value: Any, error: type[TreespecError] = InvalidArgument) -> None:
    """Refuse anything but a row of integers; whether they are in a vocabulary is not checked."""
    is_row = isinstance(value, Tensor) and value.ndim == 1
    if (
        not is_row
        or value.dtype.is_floating_point
        or value.dtype.is_complex
        or value.dtype == torch.bool
    ):
        raise error(f"{name} = {shown(value)}, but must be one row [T] of token ids (torch.long)")


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


def plain_tokens(name: str, given: Any, vocab_size: int | None = None) -> list[int]:
    """Token ids as plain integers.

    `vocab_size`: ids must be below this number; None to refuse negative ids only.
    """
    if isinstance(given, Tensor):
        token_ids(name, given)
        given = given.tolist()
    else:
        given = sequence(name, given, "token ids")
    tokens: list[int] = []
    end = None if vocab_size is None else integer("vocab_size", vocab_size, least=1)
    for i, item in enumerate(given):
        token = plain_integer(item)
        if token is None or token < 0 or (end is not None and token >= end):
            allowed = "integers of at least 0" if end is None else f"0..{end - 1}"
            raise InvalidArgument(
                f"{name}[{i}] = {shown(item)} is not a token id: ids are {allowed}"
            )
        tokens.append(token)
    return tokens


def require_in_vocabulary(name: str, largest: int, vocab_size: int | None) -> None:
    """Refuse texts with token ids beyond the target's vocabulary, which would stop decoding if drafted.

    `largest`: largest id in the texts; -1 if they hold none. `vocab_size`: the target's vocabulary size;
    None to skip the check.
    """
    if vocab_size is not None and largest >= integer("vocab_size", vocab_size, least=1):
        raise InvalidArgument(
            f"{name} has the token id {largest}, but the target's ids are 0..{vocab_size - 1}: it was made "
            "with another tokenizer"
        )
