"""What texts give alone and in a batch, in a form that can be compared."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from treespec import Step
from treespec.batch import Failed, Text, decode_many
from treespec.generation import log_probabilities

LENGTHS = (24, 1, 120, 2, 77, 3, 40, 9)
"""Tokens of eight prompts."""


@dataclass
class Told:
    """What a text gave: the kept tokens of each step, what was accepted, and how sure the target was."""

    tokens: list[tuple[int, ...]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    error: str | None = None

    def hear(self, step: Step | Failed) -> None:
        if isinstance(step, Failed):
            self.error = f"{type(step.error).__name__}: {step.error}"
            return
        self.tokens.append(tuple(step.tokens))
        self.accepted.append(step.verdict.accepted)
        self.chances += log_probabilities(step, raw=True)


def prompts(vocab: int, lengths: Iterable[int] = LENGTHS, seed: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab, (length,), generator=generator) for length in lengths]


def alone(text: Text) -> Told:
    """By `decode`."""
    told = Told()
    try:
        for step in text.steps():
            told.hear(step)
    except Exception as error:
        told.hear(Failed(error))
    return told


def together(texts: Sequence[Text], places: int | None = None) -> list[Told]:
    """By `decode_many`."""
    told = [Told() for _ in texts]
    for i, step in decode_many(texts, places=places):
        told[i].hear(step)
    return told


def require_equal(
    make: Callable[[int], Text], count: int, places: int | None = None, near: float = 1e-6
) -> list[Told]:
    """Check that texts are, step by step, what they are alone; `make` makes the parts of text i anew.

    `near`: allowed difference between log-probabilities, which norms in float32 leave in float64 models.
    """
    told = together([make(i) for i in range(count)], places)
    for i, mine in enumerate(told):
        own = alone(make(i))
        assert mine.tokens == own.tokens, f"text {i}"
        assert mine.accepted == own.accepted, f"text {i}"
        assert mine.error == own.error, f"text {i}"
        torch.testing.assert_close(mine.chances, own.chances, rtol=0, atol=near)
    return told
