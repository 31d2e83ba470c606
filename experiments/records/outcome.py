"""What one method did with one prompt, before it becomes a record."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from treespec.step import Verdict
    from treespec.tree import TreeShape

__all__ = ["STAGES", "Outcome", "StepOutcome"]

STAGES = ("draft", "verify", "accept", "commit")
"""What a step of our loop is divided into, in the order in which it happens."""


@dataclass(frozen=True)
class StepOutcome:
    """One step: a pass of the target, and what led to it.

    Args:
        shape: of the drafted tree; a chain in assisted generation, the root alone in `generate`.
        tokens: of its nodes, the root first.
        verdict: what was accepted.
        kept: tokens that went into the text.
        seconds: of each stage; empty for the methods of transformers.
        at: seconds since 1970 when the step began, by a clock that does not jump within a process.
        took: seconds of the whole step, without the prefill and without the steps of other methods.
        prefill_s: seconds of the prefill, which the first step of a text did before; 0 for the others.
        origins: of each node, the sources that drafted it; empty unless several, or the
            levels of a cascade, draft one tree.
    """

    shape: "TreeShape"
    tokens: tuple[int, ...]
    verdict: "Verdict"
    kept: int
    seconds: dict[str, float]
    at: float
    took: float
    prefill_s: float = 0.0
    origins: tuple[tuple[str, ...], ...] = ()

    @property
    def text(self) -> tuple[int, ...]:
        """The tokens that went into the text."""
        path = (self.tokens[node] for node in self.verdict.path[1:])
        return (*path, self.verdict.bonus)[: self.kept]


@dataclass(frozen=True)
class Outcome:
    """The text and how it came about; the fields are those of `records.PromptRow`.

    Args:
        tokens: new ids.
        target_passes: forward calls of the target after the prefill.
        accepted: draft tokens accepted.
        drafted: draft tokens verified.
        prefill_s: seconds of the prefill.
        total_s: seconds in all, without the turns of other methods.
        steps: one for each pass.
    """

    tokens: tuple[int, ...]
    target_passes: int
    accepted: int
    drafted: int
    prefill_s: float
    total_s: float
    steps: tuple[StepOutcome, ...] = field(repr=False)

    @classmethod
    def of(cls, steps: Iterable[StepOutcome]) -> Self:
        """The outcome of a text that has ended."""
        steps = tuple(steps)
        prefill_s = sum(step.prefill_s for step in steps)
        return cls(
            tokens=tuple(token for step in steps for token in step.text),
            target_passes=len(steps),
            accepted=sum(step.verdict.accepted for step in steps),
            drafted=sum(step.shape.size - 1 for step in steps),
            prefill_s=prefill_s,
            total_s=prefill_s + sum(step.took for step in steps),
            steps=steps,
        )

    @property
    def staged(self) -> bool:
        """Whether the steps are those of our loop, whose stages are timed."""
        return all(step.seconds for step in self.steps)

    def stage_seconds(self, stage: str) -> float | None:
        """Sum over the steps, None for the methods of transformers."""
        return sum(step.seconds[stage] for step in self.steps) if self.staged else None
