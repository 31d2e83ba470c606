"""Stop conditions. They are called after every single token, as in plain decoding."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from treespec.checks import integer
from treespec.errors import InvalidStop

Stop = Callable[[Sequence[int]], bool]
"""Whether the text ends after these ids (prompt and generated, the newest last)."""


def stop_at_tokens(tokens: Collection[int]) -> Stop:
    """Stop once the newest token is one of these; it is kept, as in transformers' `generate`.

    Raises:
        InvalidStop: if these are not token ids.
    """
    ends = frozenset(integer("a stop token", token, 0, InvalidStop) for token in tokens)
    return lambda ids: ids[-1] in ends


def stop_at_strings(strings: Collection[str] | str, tokenizer: Any) -> Stop:
    """Stop once the newest token completes one of these strings.

    Args:
        strings: the stop strings, or a single one.
        tokenizer: a transformers tokenizer; transformers' own `StopStringCriteria` decides.

    Raises:
        InvalidStop: if there are no strings, or one is empty.
    """
    from transformers import StopStringCriteria

    strings = [strings] if isinstance(strings, str) else list(strings)
    if not strings or not all(strings):
        raise InvalidStop(f"stop strings = {strings}: give at least one, and no empty string")
    criteria = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
    longest = max(map(len, strings))

    def ends(ids: Sequence[int]) -> bool:
        # A token holds at least one byte, so this tail reaches back beyond the longest string.
        tail = torch.tensor([list(ids[-4 * longest - 8 :])])
        return bool(criteria(tail, torch.empty(0)).all())

    return ends


def any_of(*stops: Stop) -> Stop:
    """Stop once any of these conditions holds."""
    return lambda ids: any(stop(ids) for stop in stops)
