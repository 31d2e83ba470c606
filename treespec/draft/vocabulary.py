"""Token ids that sources bring from elsewhere: they must be the target's."""

from typing import Any

from torch import Tensor

from treespec.door import integer, plain_integer, sequence, shown, token_ids
from treespec.errors import InvalidArgument

__all__ = ["plain_tokens", "require_in_vocabulary"]


def plain_tokens(name: str, given: Any, vocab_size: int | None = None) -> list[int]:
    """Token ids as plain integers.

    Args:
        name: of the argument, for the message.
        given: a tensor or a sequence.
        vocab_size: ids from here on are refused; None to refuse negative ones only.

    Raises:
        InvalidArgument: saying which id is none.
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
            allowed = "from 0 on" if end is None else f"0..{end - 1}"
            raise InvalidArgument(f"{name}[{i}] = {shown(item)} is no token id: ids are {allowed}")
        tokens.append(token)
    return tokens


def require_in_vocabulary(name: str, largest: int, vocab_size: int | None) -> None:
    """Refuse texts of another model's tokens: a drafted id that the target does not have stops it.

    Args:
        name: of the argument, for the message.
        largest: id in it; -1 if there is none.
        vocab_size: of the target; None to look at nothing.

    Raises:
        InvalidArgument: naming both.
    """
    if vocab_size is not None and largest >= integer("vocab_size", vocab_size, least=1):
        raise InvalidArgument(
            f"{name} has the token id {largest}, but the target's ids are 0..{vocab_size - 1}: it was made "
            "of another model's tokens"
        )
