"""Decode several texts in turns: every method of a unit is open at once, and a turn is one step.

A temporary slowdown of the machine then affects all methods alike, and each step has neighbours in time by
the other methods. The text with the fewest tokens steps next, so that all texts have about the same length
at any time and end together; if each took one step per round, plain decoding would have a shorter prefix
than the others, which would bias the comparison.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

from treespec.errors import in_words
from treespec.experiments.records.outcome import Outcome, StepOutcome
from treespec.experiments.run.transformers_hooks import quiet_transformers

__all__ = ["Decoding", "finish", "take_turns"]

_Name = TypeVar("_Name", bound=Hashable)

Decoding = Iterator[StepOutcome]
"""The steps of a text as it is decoded; no work is done between two steps."""


def take_turns(
    decodings: Mapping[_Name, Callable[[], Decoding]],
    *,
    seed: int,
) -> dict[_Name, Outcome | str]:
    """Decode several texts concurrently, one step at a time.

    Args:
        decodings: functions that begin a text, by name.
        seed: decides which of several texts of equal length steps next.

    Returns:
        The outcome of each text, or its error message if it failed. A text that fails does not affect the
        others.
    """
    outcomes: dict[_Name, Outcome | str] = {}
    with _surroundings():
        texts = {name: _Text(begin) for name, begin in decodings.items()}
        draw = random.Random(seed)
        try:
            while waiting := [name for name in texts if name not in outcomes]:
                least = min(texts[name].kept for name in waiting)
                name = draw.choice([n for n in waiting if texts[n].kept == least])
                try:
                    if not texts[name].step():
                        outcomes[name] = Outcome.of(texts[name].steps)
                except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
                    outcomes[name] = in_words(error, "the decoding")
        finally:
            for text in texts.values():
                text.close()
    return {name: outcomes[name] for name in decodings}


def finish(decoding: Decoding) -> Outcome:
    """Decode a text by itself.

    Raises:
        TreespecError, RuntimeError: what the decoding raises.
    """
    with _surroundings():
        return Outcome.of(decoding)


class _Text:
    """A text that is being decoded; decoding begins with its first step."""

    def __init__(self, begin: Callable[[], Decoding]) -> None:
        self._begin = begin
        self._decoding: Decoding | None = None
        self.steps: list[StepOutcome] = []
        self.kept = 0

    def step(self) -> bool:
        """Take a step; return False if the text was over."""
        if self._decoding is None:
            self._decoding = self._begin()
        step = next(self._decoding, None)
        if step is None:
            return False
        self.steps.append(step)
        self.kept += step.kept
        return True

    def close(self) -> None:
        """Stop decoding, wherever the text stands."""
        close = getattr(self._decoding, "close", None)
        if close is not None:
            close()


@contextmanager
def _surroundings() -> Iterator[None]:
    """Contexts that belong to the thread rather than to a text: entered once, around all texts."""
    with torch.inference_mode(), quiet_transformers():
        yield
