"""When a text is over. A stop condition is asked after every single token, as plain decoding would."""

from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

import torch

from treespec.door import able, integer, sequence, shown
from treespec.errors import InvalidStop

__all__ = ["Stop", "any_of", "stop_at_strings", "stop_at_tokens"]

Stop = Callable[[Sequence[int]], bool]
"""Whether the text is over after these ids (prompt and generated, the newest last)."""


def stop_at_tokens(tokens: Collection[int]) -> Stop:
    """Over once the newest token is one of these (which is kept, as `generate` does).

    Raises:
        InvalidStop: if these are no token ids.
    """
    given = tuple(tokens) if isinstance(tokens, Set) else tokens
    given = sequence("stop tokens", given, "token ids", InvalidStop)
    ends = frozenset(integer("a stop token", token, 0, InvalidStop) for token in given)
    return lambda ids: ids[-1] in ends


def stop_at_strings(strings: Collection[str] | str, tokenizer: Any) -> Stop:
    """Over once the newest token completes one of these strings.

    Args:
        strings: the stop strings, or a single one.
        tokenizer: a transformers tokenizer; the decision is transformers' own `StopStringCriteria`.

    Raises:
        InvalidStop: if there are none, one is empty, or no text.
    """
    from transformers import StopStringCriteria

    given = [strings] if isinstance(strings, str) else strings
    given = tuple(given) if isinstance(given, Set) else given
    strings = list(sequence("stop strings", given, "texts", InvalidStop))
    if not all(isinstance(one, str) for one in strings):
        raise InvalidStop(f"stop strings = {shown(strings)}, but must be text, or several of them")
    if not strings or not all(strings):
        raise InvalidStop(f"stop strings = {strings}: give at least one, and none that is empty")
    criteria = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
    longest = max(map(len, strings))

    def over(ids: Sequence[int]) -> bool:
        # A token holds at least one byte, so this tail reaches back past the longest string.
        tail = torch.tensor([list(ids[-4 * longest - 8 :])])
        return bool(criteria(tail, torch.empty(0)).all())

    return over


def any_of(*stops: Stop) -> Stop:
    """Over once any of these says so.

    Raises:
        InvalidArgument: if one is no function.
    """
    for i, stop in enumerate(stops):
        able(f"stops[{i}]", stop, "__call__", "a function of the ids so far")
    return lambda ids: any(stop(ids) for stop in stops)
