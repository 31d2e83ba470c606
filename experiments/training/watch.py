"""Watch a draft while it is trained: show progress, measure it, and warn if it does not become better."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treespec.experiments.run.progress import Begin, Reporter
from treespec.experiments.training.held_out_answers import TargetSays
from treespec.experiments.training.loop import Progress
from treespec.experiments.training.metric import measure
from treespec.experiments.training.students.student import Student

__all__ = ["CHOSEN_BY", "Watch"]

CHOSEN_BY = "tokens_per_step_best_first_16"
"""The figure by which drafts are judged while they are trained, and learning rates chosen."""
RISE = 0.02
"""Tokens per step that a draft must have gained between two measurements, or a warning is given."""


class Watch:
    """Is called after each step of a training.

    Args:
        student: the draft.
        name: what it is called.
        reporter: shows progress.
        says: gives the held-out answers when they are first needed.
        every: tokens between two measurements; None for none.
    """

    begin: Begin
    """Shows a part of the training as begun."""

    def __init__(
        self,
        student: Student,
        name: str,
        reporter: Reporter,
        says: Callable[[], TargetSays],
        every: int | None = None,
    ) -> None:
        self.name, self._student, self._reporter = name, student, reporter
        self._says, self._every, self._shown = says, every, 0

    def __call__(self, progress: Progress) -> None:
        self.begin(f"{self.name}, loss {progress.loss:.3f}", progress.tokens - self._shown)
        self._shown = progress.tokens
        done = progress.curve[-1]["tokens"] if progress.curve else 0
        if self._every is not None and progress.tokens - done >= self._every:
            self.measure(progress)

    def measure(self, progress: Progress) -> None:
        """Append a line to the curve."""
        metric = measure(self._says(), self._student.drafter)
        row = metric.row()
        line = {
            "tokens": progress.tokens,
            "loss": progress.loss,
            "metric_seconds": row.pop("seconds"),
        }
        progress.curve.append(line | row)
        shown = (
            f"{tree} {found.tokens_per_step.estimate:.3f}" for tree, found in metric.trees.items()
        )
        self._reporter.note(
            f"{self.name}, {progress.tokens:,} tokens: loss {progress.loss:.3f}; tokens per step "
            + ", ".join(shown)
        )
        if len(progress.curve) == 2 and (rise := _rise(progress.curve)) < RISE:
            self._reporter.note(
                f"warning: {self.name} has not become better since the first measurement "
                f"({CHOSEN_BY.replace('_', ' ')}: {rise:+.3f}): try another learning rate"
            )


def _rise(curve: Sequence[Mapping[str, Any]]) -> float:
    return curve[-1][CHOSEN_BY] - curve[0][CHOSEN_BY]
