"""Prediction against measurement, as a table in the terminal and in the report."""

from collections.abc import Callable, Sequence
from html import escape

from rich import box
from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from treespec.experiments.report.html import interval_html, section, table
from treespec.experiments.report.prediction import (
    Prediction,
    chosen,
    first_ranked,
    median_errors,
    pace_of,
    predictions,
)
from treespec.experiments.report.run import Run
from treespec.experiments.report.statistics import Interval

__all__ = ["prediction_section", "print_predictions"]

HEADS = (
    *("tree", "tokens/step", "measured", "error"),
    *("ms/step", "at pace", "measured", "tokens/s", "at pace", "measured", "error", "at pace"),
)

NOTE = (
    "Predicted before the run: tokens per step by replaying each tree on texts recorded for that purpose, "
    "milliseconds per step from times of single parts. At pace: each stage as much longer or shorter as "
    "its parts took on average when they were timed again between the run's prompts; that takes out the "
    "drift of the machine and its hiccups, and leaves what the prediction itself gets wrong. Measured: "
    "what steps emitted, tokens past the budget included. Intervals are 95 %, over texts."
)

MISSING = (
    "No prediction beside the measurement: the run's folder lacks `search/`, or nothing in it covers these "
    "trees."
)


def print_predictions(run: Run, console: Console) -> None:
    """A table for each sampling setting and what it says; nothing if nothing was predicted."""
    rows = predictions(run)
    if not rows and run.manifest["config"].get("search") is not None:
        console.print(f"[dim]{plain(MISSING)}[/dim]", highlight=False)
    for sampling, own in _by_sampling(rows):
        shown = Table(*HEADS, title=f"predicted and measured, {sampling}", box=box.SIMPLE)
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in own:
            shown.add_row(plain(row.method), *_cells(row))
        console.print(shown)
        console.print(plain(_said(run, own)), highlight=False)
    if rows:
        console.print(f"[dim]{plain(NOTE)}[/dim]", highlight=False)


def prediction_section(run: Run) -> str:
    """The same for the report; empty if nothing was predicted."""
    parts = []
    for sampling, own in _by_sampling(predictions(run)):
        cells = [
            [escape(row.method), interval_html(row.tokens), interval_html(row.tokens_measured),
             *_cells(row)[2:]]
            for row in own
        ]  # fmt: skip
        parts.append(table(HEADS, cells, sampling) + f"<p>{escape(_said(run, own))}</p>")
    note = f'<p class="muted">{escape(NOTE)}</p>'
    return section("Prediction and measurement", "".join(parts) + note) if parts else ""


def _by_sampling(rows: Sequence[Prediction]) -> list[tuple[str, list[Prediction]]]:
    names = dict.fromkeys(row.sampling for row in rows)
    return [(name, [row for row in rows if row.sampling == name]) for name in names]


def _cells(row: Prediction) -> list[str]:
    return [
        _interval(row.tokens),
        _interval(row.tokens_measured),
        f"{row.tokens_error:+.1%}",
        f"{1e3 * row.step_s:.1f}",
        _optional(row.step_at_pace_s, lambda seconds: f"{1e3 * seconds:.1f}"),
        f"{1e3 * row.step_measured_s:.1f}",
        f"{row.speed:.1f}",
        _optional(row.speed_at_pace, lambda speed: f"{speed:.1f}"),
        f"{row.speed_measured:.1f}",
        f"{row.speed_error:+.1%}",
        _optional(row.speed_error_at_pace, lambda error: f"{error:+.1%}"),
    ]


def _optional(value: float | None, shown: Callable[[float], str]) -> str:
    return "–" if value is None else shown(value)


def _interval(value: Interval) -> str:
    if not value.bounded:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f} ({value.low:.2f}-{value.high:.2f})"


def _paced(run: Run, error: float | None) -> str:
    """What the machine did meanwhile."""
    if error is None or (found := pace_of(run)) is None:
        return " (parts of a step were not timed during the run, or too few times: drift is in it)"
    rounds, paces = found
    stages = ", ".join(f"{stage} {paces[stage]:.2f}" for stage in ("draft", "verify", "plain"))
    return (
        f", {error:.1%} at the pace of the machine during the run (timed {rounds} times between its "
        f"prompts: {stages} times as long as before it)"
    )


def _said(run: Run, rows: Sequence[Prediction]) -> str:
    """How good the prediction was, and what following it would have cost."""
    tokens, speed, at_pace = median_errors(rows)
    first, best = first_ranked(rows)
    reached = first.speed_measured / best.speed_measured
    said = (
        f"Median error over {len(rows)} trees: {tokens:.1%} of tokens per step, {speed:.1%} of tokens per "
        f"second{_paced(run, at_pace)}. Predicted to be fastest, by the times from before the run: "
        f"{first.method}, which reached {reached:.0%} of the speed of the fastest of these ({best.method})."
    )
    choice = chosen(run, rows[0].sampling)
    if choice is None:
        return said
    own, fastest, ratio = choice
    reached = f"reached {_interval(ratio)} of the speed of the run's fastest ({fastest})"
    return f"{said} What search chose ({own}) {reached}."
