"""Texts that take turns: every method of a unit is open at once, and each step is one turn.

Whatever slows the machine down for a while then meets all methods alike, and each step has neighbours in
time by the other methods. Who has the fewest tokens steps next, so that all texts stand at about the same
length and end together; by rounds, plain decoding would be hurt or favoured by its shorter prefix.
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
"""A text that is decoded step by step, and does nothing between two steps."""


def take_turns(
    decodings: Mapping[_Name, Callable[[], Decoding]],
    *,
    seed: int,
) -> dict[_Name, Outcome | str]:
    """Decode several texts at once, in turns of a step.

    Args:
        decodings: by name, what begins a text.
        seed: decides between texts of the same length.

    Returns:
        The outcome of each, in words what went wrong with it if it failed. A text that fails leaves the
        others as they are.
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
                except (Exception, SystemExit) as error:  # a part of the user's may end the program
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
    """A text while it is decoded."""

    def __init__(self, begin: Callable[[], Decoding]) -> None:
        self._begin = begin
        self._decoding: Decoding | None = None
        self.steps: list[StepOutcome] = []
        self.kept = 0

    def step(self) -> bool:
        """Take a step; whether there was one left."""
        if self._decoding is None:
            self._decoding = self._begin()
        step = next(self._decoding, None)
        if step is None:
            return False
        self.steps.append(step)
        self.kept += step.kept
        return True

    def close(self) -> None:
        """End it where it stands."""
        close = getattr(self._decoding, "close", None)
        if close is not None:
            close()


@contextmanager
def _surroundings() -> Iterator[None]:
    """What belongs to the thread, and not to a text: entered once, around all of them."""
    with torch.inference_mode(), quiet_transformers():
        yield
