"""Decode several texts in turns: every method of a unit is open at once, and a turn is one step.

A temporary slowdown of the machine then affects all methods alike, and each step has neighbours in time by
the other methods. The text with the fewest tokens steps next, so that all texts have about the same length
at any time and end together; if each took one step per round, plain decoding would have a shorter prefix
than the others, which would bias the comparison.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

from treespec.errors import in_words
from treespec.experiments.records.outcome import Outcome, StepOutcome
from treespec.experiments.run.transformers_hooks import quiet_transformers

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
        texts = {name: _begun_late(begin) for name, begin in decodings.items()}
        steps: dict[_Name, list[StepOutcome]] = {name: [] for name in decodings}
        kept = Counter[_Name]()
        draw = random.Random(seed)
        try:
            while waiting := [name for name in texts if name not in outcomes]:
                least = min(kept[name] for name in waiting)
                name = draw.choice([n for n in waiting if kept[n] == least])
                try:
                    step = next(texts[name], None)
                    if step is None:
                        outcomes[name] = Outcome.of(steps[name])
                    else:
                        steps[name].append(step)
                        kept[name] += step.kept
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


def _begun_late(begin: Callable[[], Decoding]) -> Generator[StepOutcome]:
    """The steps of a text, which begins with its first step and can be closed wherever it stands."""
    yield from begin()


@contextmanager
def _surroundings() -> Iterator[None]:
    """Contexts that belong to the thread rather than to a text: entered once, around all texts."""
    with torch.inference_mode(), quiet_transformers():
        yield
