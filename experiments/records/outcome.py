"""What one method did with one prompt, before it becomes a record."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treespec.step import Verdict
    from treespec.tree import TreeShape

__all__ = ["STAGES", "Outcome", "StepOutcome"]

STAGES = ("draft", "verify", "accept", "commit")
"""What a step of our loop is divided into, in the order in which it happens."""


@dataclass(frozen=True)
class StepOutcome:
    """One step of our loop.

    Args:
        shape: of the drafted tree.
        tokens: of its nodes, the root first.
        verdict: what was accepted.
        kept: tokens that went into the text.
        seconds: of each stage.
    """

    shape: "TreeShape"
    tokens: tuple[int, ...]
    verdict: "Verdict"
    kept: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """The text and how it came about; the fields are those of `records.PromptRow`.

    Args:
        tokens: new ids.
        target_passes: forward calls of the target after the prefill.
        accepted: draft tokens accepted.
        drafted: draft tokens verified, None where unknown.
        prefill_s: seconds of the prefill.
        total_s: seconds in all.
        steps: our loop's steps; None for the methods of transformers.
    """

    tokens: tuple[int, ...]
    target_passes: int
    accepted: int
    drafted: int | None
    prefill_s: float
    total_s: float
    steps: tuple[StepOutcome, ...] | None = field(default=None, repr=False)

    def stage_seconds(self, stage: str) -> float | None:
        """Sum over the steps, None for the methods of transformers."""
        return None if self.steps is None else sum(step.seconds[stage] for step in self.steps)
