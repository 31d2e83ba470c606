"""The collected table of a sweep, for the terminal."""

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Console

from treespec.experiments.config.base import mark_of
from treespec.experiments.report.table import Column, Table, interval, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.sweep.collect import METRIC_PREFIX, PREFIX, Collected
from treespec.search.intervals import Interval

MOST_ROWS = 120
"""Maximum rows of a table that shows every method; beyond that, it shows the fastest of each kind."""

MOST_ERRORS = 10

_Row = dict[str, Any]


def print_collected(collected: Collected, console: Console) -> None:
    whole = len(collected.summary) <= MOST_ROWS
    rows = (collected.summary if whole else _fastest_of_kind(collected.summary)).to_dicts()
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        print_table(_table(sampling, [r for r in rows if r["sampling"] == sampling]), console)
    console.print()
    for outcome in collected.failed[:MOST_ERRORS]:
        say(console, f"failed {outcome.name}: {outcome.error}", "red")
    if len(collected.failed) > MOST_ERRORS:
        say(console, f"... and {len(collected.failed) - MOST_ERRORS} more failed: see summary.json")
    for note in collected.notes:
        say(console, note, "dim")
    if len(rows) < len(collected.summary):
        say(
            console,
            "The fastest plain, assisted, chain and tree method of each job; all "
            f"{len(collected.summary)} rows are in summary.parquet.",
            "dim",
        )


def _table(sampling: str, rows: Sequence[_Row]) -> Table:
    first_of_job = {
        id(row) for i, row in enumerate(rows) if not i or row["job"] != rows[i - 1]["job"]
    }

    def value(key: str) -> Column[_Row]:
        """A column for a key of the grid, filled in the first row of each job."""
        return Column(
            key.removeprefix(PREFIX),
            lambda row: str(row[key]) if id(row) in first_of_job else "",
            left=True,
        )

    return Table(
        sampling,
        [
            *(value(name) for name in rows[0] if name.startswith(PREFIX)),
            Column("method", _label, left=True),
            keyed("prompts", "prompts"),
            Column("tok/step", lambda row: interval(_interval(row, "tokens_per_step"))),
            keyed("tok/s", "tokens_per_second", ".1f"),
            Column("speedup", lambda row: interval(_interval(row, "speedup"))),
            *(
                keyed(name.removeprefix(METRIC_PREFIX), name, ".3g")
                for name in rows[0]
                if name.startswith(METRIC_PREFIX)
            ),
        ],
        rows,
        group=lambda row: row["job"],
        tone=lambda row: "best" if row["fastest"] else "",
    )


def _label(row: _Row) -> str:
    failed = f" ({row['errors']} failed)" if row["errors"] else ""
    name = row["method"]
    mark = mark_of(name, lossless=row["lossless"] or "synthetic" in name, synthetic=False)
    return f"{name}{mark}{failed}"


def _interval(row: _Row, name: str) -> Interval | None:
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    return None if value is None else Interval.of(value, low, high)


def _fastest_of_kind(summary: pl.DataFrame) -> pl.DataFrame:
    return (
        summary.with_row_index("place")
        .filter("lossless")
        .sort(
            pl.col("tokens_per_second").fill_nan(None),
            descending=True,
            nulls_last=True,
            maintain_order=True,
        )
        .unique(["job", "sampling", "group"], keep="first", maintain_order=True)
        .sort("place")
        .drop("place")
    )
