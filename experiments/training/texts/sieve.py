"""What is not kept: loops, repeats, texts with next to no answer, and held-out prompts."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Integer

from treespec.experiments.training.texts.grams import most_repeats
from treespec.experiments.training.texts.leaks import Leaks
from treespec.stopping import Stop

LOOP, MOST_REPEATS = 8, 3
"""A text is a loop if these many tokens in a row occur more than so often in its answer."""

SHORTEST_ANSWER = 8
"""Tokens of an answer below which there is next to nothing to learn."""

Reason = Literal["prompt not ended", "prompt too long", "short", "loop", "duplicate", "leak"]


@dataclass(frozen=True)
class Candidate:
    """A text that may be kept.

    Args:
        ids: its token ids, with its prompt; empty if there is no text.
        prompt: number of tokens of its prompt.
        greedy: whether its answer was written greedily.
        invented: whether its prompt was invented by the target.
        fault: why there is no text.
    """

    ids: Integer[np.ndarray, "T"]
    prompt: int = 0
    greedy: bool = False
    invented: bool = False
    fault: Reason | None = None

    @property
    def answer(self) -> Integer[np.ndarray, "_"]:
        """The token ids after the prompt."""
        return self.ids[self.prompt :]


def stop_at_loop(prompt: int) -> Stop:
    """Stop a text once its answer is a loop, so that no pass is spent on what is dropped.

    Args:
        prompt: tokens of its prompt.
    """
    counts = Counter[tuple[int, ...]]()

    def ends(ids: Sequence[int]) -> bool:
        if len(ids) < prompt + LOOP:
            return False
        latest = tuple(ids[-LOOP:])
        counts[latest] += 1
        return counts[latest] > MOST_REPEATS

    return ends


class Sieve:
    """Keeps texts, and counts why others are dropped.

    Args:
        leaks: finds held-out prompts.
        kept: texts that were kept before.
    """

    def __init__(self, leaks: Leaks, kept: Iterable[Integer[np.ndarray, "_"]] = ()) -> None:
        self._leaks = leaks
        self._seen = {_digest(ids) for ids in kept}

    def sift(self, candidates: Iterable[Candidate]) -> tuple[list[Candidate], Counter[str]]:
        """The texts to keep, and how many of the others were dropped for each reason."""
        kept, dropped = list[Candidate](), Counter[str]()
        for candidate in candidates:
            if (fault := self._fault(candidate)) is None:
                kept.append(candidate)
                self._seen.add(_digest(candidate.ids))
            else:
                dropped[fault] += 1
        return kept, dropped

    def _fault(self, candidate: Candidate) -> Reason | None:
        """The first reason to drop a text."""
        if candidate.fault is not None:
            return candidate.fault
        if len(candidate.answer) < SHORTEST_ANSWER:
            return "short"
        if most_repeats(candidate.answer, LOOP) > MOST_REPEATS:
            return "loop"
        if _digest(candidate.ids) in self._seen:
            return "duplicate"
        return "leak" if self._leaks.found(candidate.ids, candidate.prompt) else None


def _digest(ids: Integer[np.ndarray, "_"]) -> bytes:
    return hashlib.blake2b(np.asarray(ids, dtype=np.uint32).tobytes(), digest_size=16).digest()


def dropped_in_words(dropped: Mapping[str, int]) -> str:
    """How many texts were dropped for each reason.

    Example:
        >>> dropped_in_words({"loop": 2, "leak": 1})
        '2 loop, 1 leak'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"
