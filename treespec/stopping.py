"""Stop conditions. They are called after every single token, as in plain decoding."""

from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

import torch

from treespec.door import able, integer, sequence, shown
from treespec.errors import InvalidStop

Stop = Callable[[Sequence[int]], bool]
"""Whether the text ends after these ids (prompt and generated, the newest last)."""


def stop_at_tokens(tokens: Collection[int]) -> Stop:
    """Stop once the newest token is one of these; it is kept, as in transformers' `generate`.

    Raises:
        InvalidStop: if these are not token ids.
    """
    given = tuple(tokens) if isinstance(tokens, Set) else tokens
    given = sequence("stop tokens", given, "token ids", InvalidStop)
    ends = frozenset(integer("a stop token", token, 0, InvalidStop) for token in given)
    return lambda ids: ids[-1] in ends


def stop_at_strings(strings: Collection[str] | str, tokenizer: Any) -> Stop:
    """Stop once the newest token completes one of these strings.

    Args:
        strings: the stop strings, or a single one.
        tokenizer: a transformers tokenizer; transformers' own `StopStringCriteria` decides.

    Raises:
        InvalidStop: if there are no strings, or one is empty or not text.
    """
    from transformers import StopStringCriteria

    given = [strings] if isinstance(strings, str) else strings
    given = tuple(given) if isinstance(given, Set) else given
    strings = list(sequence("stop strings", given, "texts", InvalidStop))
    if not all(isinstance(string, str) for string in strings):
        raise InvalidStop(
            f"stop strings = {shown(strings)}, but must be a string or several strings"
        )
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
    for i, stop in enumerate(stops):
        able(f"stops[{i}]", stop, "__call__", "a function of the ids so far")
    return lambda ids: any(stop(ids) for stop in stops)
