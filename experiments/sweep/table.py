"""The collected table of a sweep, for the terminal."""

import math
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treespec.experiments.sweep.collect import PREFIX, Collected

__all__ = ["print_collected"]

MOST_ROWS = 120
"""Of a table that shows every method; a longer one shows the fastest of each kind."""

ERRORS_SHOWN = 10


def print_collected(collected: Collected, console: Console) -> None:
    """Print a table for each sampling setting, the jobs that failed, and what must be known."""
    rows = collected.summary.to_dicts()
    if len(rows) > MOST_ROWS:
        rows = _fastest_of_kind(rows)
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        console.print()
        console.print(_table(sampling, [row for row in rows if row["sampling"] == sampling]))
    console.print()
    for outcome in collected.failed[:ERRORS_SHOWN]:
        console.print(
            f"[red]failed[/red] {escape(f'{outcome.name}: {outcome.error}')}", highlight=False
        )
    if len(collected.failed) > ERRORS_SHOWN:
        console.print(
            f"... and {len(collected.failed) - ERRORS_SHOWN} more failed: see summary.json"
        )
    for note in collected.notes:
        console.print(f"[dim]{escape(note)}[/dim]", highlight=False)
    if len(rows) < len(collected.summary):
        console.print(
            f"[dim]The fastest plain, assisted, chain and tree method of each job; all "
            f"{len(collected.summary)} rows are in summary.parquet.[/dim]",
            highlight=False,
        )


def _table(sampling: str, rows: list[dict[str, Any]]) -> Table:
    keys = [name for name in rows[0] if name.startswith(PREFIX)]
    table = Table(title=sampling, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for key in keys:
        table.add_column(key.removeprefix(PREFIX), overflow="fold")
    table.add_column("method", overflow="fold")
    for head in ("prompts", "tok/step", "tok/s", "speedup"):
        table.add_column(head, justify="right", no_wrap=True)
    job = rows[0]["job"]
    for row in rows:
        first = row["job"] != job or row is rows[0]
        if row["job"] != job:
            table.add_section()
            job = row["job"]
        failed = f" ({row['errors']} failed)" if row["errors"] else ""
        table.add_row(
            *(escape(str(row[key])) if first else "" for key in keys),
            escape(row["method"] + ("" if row["lossless"] else " (lossy)") + failed),
            str(row["prompts"]),
            _interval(row, "tokens_per_step"),
            f"{row['tokens_per_second']:.1f}",
            _interval(row, "speedup"),
            style="bold" if row["fastest"] else None,
        )
    return table


def _fastest_of_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if row["lossless"]:
            key = row["job"], row["sampling"], row["group"]
            held = best.get(key)
            if held is None or row["tokens_per_second"] > held["tokens_per_second"]:
                best[key] = row
    chosen = {id(row) for row in best.values()}
    return [row for row in rows if id(row) in chosen]


def _interval(row: dict[str, Any], name: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return "–"
    if low is None or high is None or math.isclose(low, high, rel_tol=1e-9):
        return f"{value:.2f}"
    return f"{value:.2f} {low:.2f}–{high:.2f}"
