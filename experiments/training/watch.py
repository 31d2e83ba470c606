"""Watch a draft while it is trained: show progress, measure it, and warn if it does not become better."""

from collections.abc import Callable, Mapping
from typing import Any

from treespec.experiments.run.progress import Begin, Reporter
from treespec.experiments.training.held_out_answers import TargetSays
from treespec.experiments.training.loop import Progress
from treespec.experiments.training.metric import measure
from treespec.experiments.training.students.student import Student

CHOSEN_BY = "tokens_per_step_best_first_16"
"""The figure by which drafts are judged while they are trained."""
RISES = {CHOSEN_BY: 0.02, "overlap": 0.01}
"""What a draft must have gained since it was fresh, in one of these figures, or a warning is given. Overlap
is an acceptance too, and moves where a tree's steps on a few hundred positions stay the same."""
MOST_TIME = 0.1
"""Share of the time of a training that its measurements may take, but for that at the end."""


class Watch:
    """Is called before the first step of a training and after each one.

    It measures the fresh draft, then after so many tokens; later if that would take more than `MOST_TIME`
    of the time of the training so far. Neither weights nor random numbers depend on it.

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
        if progress.step:
            self.begin(f"{self.name}, loss {progress.loss:.3f}", progress.tokens - self._shown)
            self._shown = progress.tokens
        if self._every is not None and _due(progress, self._every):
            self.measure(progress)

    def measure(self, progress: Progress) -> None:
        """Append a line to the curve."""
        metric = measure(self._says(), self._student.drafter)
        row = metric.row()
        line = {
            "tokens": progress.tokens,
            "loss": progress.loss if progress.step else None,
            "metric_seconds": row.pop("seconds"),
        }
        progress.curve.append(line | row)
        shown = (
            f"{tree} {found.tokens_per_step.estimate:.3f}" for tree, found in metric.trees.items()
        )
        self._reporter.note(
            f"{self.name}, {progress.tokens:,} tokens: held-out loss {metric.near.loss.estimate:.3f}; "
            f"tokens per step {', '.join(shown)}"
        )
        if len(progress.curve) == 2 and not _risen(*progress.curve):
            gained = ", ".join(
                f"{figure.replace('_', ' ')} {progress.curve[1][figure] - progress.curve[0][figure]:+.3f}"
                for figure in RISES
            )
            self._reporter.note(
                f"warning: {self.name} has not become better since it was fresh ({gained}): try another "
                "learning rate"
            )


def _due(progress: Progress, every: int) -> bool:
    """Whether a measurement is made now."""
    curve = progress.curve
    if not curve:
        return True
    measuring = sum(row["metric_seconds"] for row in curve)
    cost, training = curve[-1]["metric_seconds"], progress.seconds - measuring
    return (
        progress.tokens - curve[-1]["tokens"] >= every and measuring + cost <= MOST_TIME * training
    )


def _risen(first: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return any(now[figure] - first[figure] >= rise for figure, rise in RISES.items())
