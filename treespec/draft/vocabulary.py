"""Check that token ids from outside belong to the target's vocabulary."""

from typing import Any

from torch import Tensor

from treespec.door import integer, plain_integer, sequence, shown, token_ids
from treespec.errors import InvalidArgument


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
