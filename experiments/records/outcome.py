"""The result of decoding one prompt with one method, before it becomes rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from treespec.step import Verdict
from treespec.tree import TreeShape

STAGES = ("draft", "verify", "accept", "commit")


@dataclass(frozen=True)
class StepOutcome:
    """One step: a pass of the target, and the drafting before it.

    Args:
        shape: shape of the drafted tree; a chain in assisted generation, the root alone in `generate`.
        kept: number of tokens that went into the text.
        seconds: time of each stage; empty for the methods of transformers.
        at: start of the step in seconds since 1970, by a clock that does not jump within a process.
        took: seconds of the whole step, without the prefill and without the steps of other methods.
        prefill_s: seconds of the prefill, in the first step of a text; 0 in the others.
        origins: for each node, the sources that drafted it, or the level of a cascade; empty if one source
            drafts a given shape or growth.
    """

    shape: TreeShape
    tokens: tuple[int, ...]
    verdict: Verdict
    kept: int
    seconds: dict[str, float]
    at: float
    took: float
    prefill_s: float = 0.0
    origins: tuple[tuple[str, ...], ...] = ()

    @property
    def text(self) -> tuple[int, ...]:
        path = (self.tokens[node] for node in self.verdict.path[1:])
        return (*path, self.verdict.bonus)[: self.kept]


@dataclass(frozen=True)
class Outcome:
    """A decoded text with its counts and times; see `records.rows.PromptRow`.

    Args:
        target_passes: number of forward calls of the target after the prefill.
        total_s: total seconds, without the turns of other methods.
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
        return sum(step.seconds[stage] for step in self.steps) if self.staged else None
