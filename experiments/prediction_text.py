"""Prediction against measurement, as a table in the terminal and in the report."""

from collections.abc import Sequence
from html import escape

from rich import box
from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from experiments.loading import Run
from experiments.prediction import Prediction, chosen, first_ranked, median_errors, predictions
from experiments.report_html import interval_html, section, table
from experiments.statistics import Interval

__all__ = ["prediction_section", "print_predictions"]

HEADS = (
    *("tree", "tokens/step", "measured", "error"),
    *("ms/step", "measured", "tokens/s", "measured", "error"),
)

NOTE = (
    "Predicted before the run: tokens per step by replaying each tree on texts recorded for that purpose, "
    "milliseconds per step from times of single parts. Measured: what steps emitted, tokens past the "
    "budget included. Intervals are 95 %, over texts."
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
        f"{1e3 * row.step_measured_s:.1f}",
        f"{row.speed:.1f}",
        f"{row.speed_measured:.1f}",
        f"{row.speed_error:+.1%}",
    ]


def _interval(value: Interval) -> str:
    if not value.bounded:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f} ({value.low:.2f}-{value.high:.2f})"


def _said(run: Run, rows: Sequence[Prediction]) -> str:
    """How good the prediction was, and what following it would have cost."""
    tokens, speed = median_errors(rows)
    first, best = first_ranked(rows)
    reached = first.speed_measured / best.speed_measured
    said = (
        f"Median error over {len(rows)} trees: {tokens:.1%} of tokens per step, {speed:.1%} of tokens per "
        f"second. Predicted to be fastest of these: {first.method}, which reached {reached:.0%} of the "
        f"speed of the fastest of these ({best.method})."
    )
    choice = chosen(run, rows[0].sampling)
    if choice is None:
        return said
    own, fastest, ratio = choice
    reached = f"reached {_interval(ratio)} of the speed of the run's fastest ({fastest})"
    return f"{said} What search chose ({own}) {reached}."
