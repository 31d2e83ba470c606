"""Markdown tables of the figures in result files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from treespec.experiments.report.markdown import markdown
from treespec.experiments.report.table import NONE, Cell, Column, Table, interval
from treespec.search.intervals import Interval

__all__ = ["Parts", "Row", "around", "bounds", "by", "named", "one_table", "percent", "table"]

Row = Mapping[str, Any]
Parts = Mapping[str, Sequence[str]]
"""Paragraphs and tables, by their topic, such as a sampling setting."""


def table(columns: Mapping[str, Callable[[Row], Any]], rows: Iterable[Row], words: int = 1) -> str:
    """A Markdown table; the first `words` columns hold words and are aligned to the left."""
    heads = [
        Column[Row](name, partial(_cell, write), left=i < words)
        for i, (name, write) in enumerate(columns.items())
    ]
    return markdown(Table("", heads, list(rows)))


def _cell(write: Callable[[Row], Any], row: Row) -> Cell:
    """A value as text: intervals with their bounds, numbers with two decimals, words unchanged."""
    value = write(row)
    if isinstance(value, Mapping):
        value = Interval.of(value["estimate"], value["low"], value["high"])
    if value is None or isinstance(value, Interval):
        return interval(value)
    return Cell(f"{value:.2f}" if isinstance(value, float) else str(value))


def percent(share: float | None, digits: int = 0) -> str:
    """A share in percent, or a dash for None."""
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def bounds(row: Row, name: str) -> Row:
    """An estimate with the bounds that a sweep keeps in separate columns."""
    return {"estimate": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}


def around(row: Row, name: str, digits: int = 2) -> str:
    """An estimate ± half the width of its interval, which stands in a column of its own."""
    return Interval.around(row[name], row[f"{name}_95"]).plus_minus(digits)


def named(rows: Mapping[str, Any], *columns: str) -> list[Row]:
    """The rows of a mapping with their keys as a column; of nested mappings, with one column per level."""
    key_column, *deeper = columns
    return [
        {**row, key_column: key}
        for key, value in rows.items()
        for row in (named(value, *deeper) if deeper else [value])
    ]


def one_table(
    columns: Mapping[str, Callable[[Row], Any]],
    rows: Iterable[Row],
    words: int = 1,
    intro: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Parts:
    """One table of all rows, after an introduction and followed by notes."""
    return {"": [*intro, table(columns, rows, words), *notes]}


def by(
    name: str,
    columns: Mapping[str, Callable[[Row], Any]],
    rows: Sequence[Row],
    words: int = 1,
    about: str = "",
) -> Parts:
    """One table for each value in the column `name`, headed by the value in bold and by `about`."""
    return {
        value: [
            f"**{value}**{about}",
            table(columns, (row for row in rows if row[name] == value), words),
        ]
        for value in dict.fromkeys(row[name] for row in rows)
    }
