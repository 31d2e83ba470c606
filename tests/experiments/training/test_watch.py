"""Watching a training: when a draft is measured, and when it is said not to become better."""

import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from treespec.experiments.run.progress import Reporter
from treespec.experiments.training import watch
from treespec.experiments.training.held_out_answers import TargetSays
from treespec.experiments.training.loop import Progress
from treespec.experiments.training.students.student import Student
from treespec.experiments.training.watch import CHOSEN_BY, Watch


def watched(
    monkeypatch: pytest.MonkeyPatch, figures: Sequence[tuple[float, float]], cost: float = 0.0
) -> tuple[Watch, io.StringIO]:
    """A watch of a draft that is measured as having these tokens per step and this overlap."""
    left = iter(figures)

    def measured(says: Any, make: Any) -> Any:
        chosen, overlap = next(left)
        row = {CHOSEN_BY: chosen, "overlap": overlap, "seconds": cost}
        near = SimpleNamespace(loss=SimpleNamespace(estimate=1.0))
        return SimpleNamespace(row=lambda: row, trees={}, near=near)

    monkeypatch.setattr(watch, "measure", measured)
    text = io.StringIO()
    student = cast("Student", SimpleNamespace(drafter=None))
    reporter = Reporter(Console(file=text, width=200))
    made = Watch(student, "eagle3", reporter, lambda: cast("TargetSays", None), every=100)
    made.begin = lambda text, work=1: None
    return made, text


def trained(made: Watch, steps: int, seconds_each: float) -> Progress:
    progress = Progress()
    made(progress)
    for _ in range(steps):
        progress.step += 1
        progress.tokens += 50
        progress.seconds = progress.step * seconds_each + sum(
            row["metric_seconds"] for row in progress.curve
        )
        made(progress)
    return progress


def test_measurements_are_spaced_out_where_they_take_more_than_a_tenth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One costs a second. The second is due after 20 s, the third after 30 s, and so on."""
    made, _ = watched(monkeypatch, [(1.0 + i, 0.0) for i in range(99)], cost=1.0)
    assert [row["tokens"] for row in trained(made, 50, 1.0).curve] == [0, 1000, 1500, 2000, 2500]
    made, _ = watched(monkeypatch, [(1.0 + i, 0.0) for i in range(99)], cost=1.0)
    assert [row["tokens"] for row in trained(made, 6, 100.0).curve] == [0, 100, 200, 300]


@pytest.mark.parametrize(
    ("figures", "warned"),
    [
        ([(1.2, 0.1), (1.2, 0.1)], True),
        ([(1.2, 0.1), (1.1, 0.05)], True),
        ([(1.2, 0.1), (1.3, 0.1)], False),
        ([(1.2, 0.1), (1.2, 0.2)], False),
        ([(1.2, 0.1), (1.5, 0.2), (1.2, 0.1)], False),
    ],
)
def test_a_draft_that_is_no_better_than_a_fresh_one_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, figures: list[tuple[float, float]], warned: bool
) -> None:
    made, text = watched(monkeypatch, figures)
    progress = trained(made, 2 * len(figures) - 2, 1.0)
    assert len(progress.curve) == len(figures)
    assert ("warning: eagle3 has not become better" in text.getvalue()) == warned
