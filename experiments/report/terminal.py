"""Tables and findings in the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from treespec.experiments.report.table import Finding, Table

__all__ = ["print_finding", "print_table", "say"]

LEAST_NAME = 19
"""Columns that words keep before intervals or columns are left out; longer ones are folded."""

STYLES = {"best": "bold", "bad": "red"}


def say(console: Console, text: str, style: str | None = None, width: int | None = None) -> None:
    """Print a text that holds no markup."""
    console.print(escape(text), style=style, width=width, highlight=False)


def print_finding(finding: Finding | None, console: Console) -> None:
    """Print tables, what follows from each, and how to read them."""
    if finding is None:
        return
    for table in finding.tables:
        print_table(table, console)
        if table.said:
            console.print()
            say(console, table.said)
    console.print()
    for note in (*finding.remarks, *finding.notes):
        say(console, note, "dim")


def print_table(
    table: Table, console: Console, width: int | None = None, moved: int | None = None
) -> None:
    """Print a table so that it fits.

    Columns that may move are shown in a second table, and where none may, intervals are left out.

    Args:
        table: what is printed.
        console: where to.
        width: columns at most; those of the console by default.
        moved: how many steps of moving have been taken; as many as it needs by default.
    """
    width = min(width or console.width, console.width)
    widths = [_width(table, i, details=True) for i in range(len(table.columns))]
    parts = _parts(table, widths, width, moves(table, width) if moved is None else moved)
    for title, shown in parts:
        details = (
            len(parts) > 1
            or any(c.moves for c in table.columns)
            or _fits(table, widths, shown, width)
        )
        console.print()
        console.print(_rich(table, title, shown, details), width=width)


def moves(table: Table, width: int) -> int:
    """How many steps of moving columns it takes until the first table fits."""
    widths = [_width(table, i, details=True) for i in range(len(table.columns))]
    last = max((column.moves for column in table.columns), default=0)
    for moved in range(last):
        if _fits(table, widths, _split(table, moved)[0], width):
            return moved
    return last


def _rich(table: Table, title: str, shown: Sequence[int], details: bool) -> RichTable:
    """The columns `shown`, as rich has them."""
    gap = _gap(table)
    rich = RichTable(
        title=escape(title) or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        padding=(0, gap), show_edge=False,
    )  # fmt: skip
    for i in shown:
        column = table.columns[i]
        rich.add_column(
            escape(column.head),
            justify="left" if column.left else "right",
            no_wrap=not column.left,
            overflow="fold",
            min_width=_width(table, i, details),
        )
    for i, (item, cells) in enumerate(zip(table.items, table.rows, strict=True)):
        if table.opens(i):
            rich.add_section()
        texts = [str(cells[j]) if details else cells[j].text for j in shown]
        rich.add_row(*map(escape, texts), style=STYLES.get(table.tone(item)))
    return rich


def _parts(
    table: Table, widths: Sequence[int], width: int, moved: int
) -> list[tuple[str, list[int]]]:
    """The tables that one becomes: title, and columns that fit."""
    first, rest = _split(table, moved)
    parts = [(table.full_title, first)]
    while rest and table.items:
        shown = [0, rest.pop(0)]
        while rest and _fits(table, widths, [*shown, rest[0]], width):
            shown.append(rest.pop(0))
        names = {table.columns[i].part for i in shown[1:]}
        name = names.pop() if len(names) == 1 else "the rest"
        parts.append((f"{table.subject}: {name}", shown))
    return parts


def _split(table: Table, moved: int) -> tuple[list[int], list[int]]:
    """Columns of the first table, and those that left it."""
    every = range(len(table.columns))
    leaves = [0 < column.moves <= moved for column in table.columns]
    return [i for i in every if not leaves[i]], [i for i in every if leaves[i]]


def _fits(table: Table, widths: Sequence[int], shown: Sequence[int], width: int) -> bool:
    gap = 1 + 2 * _gap(table)
    return sum(widths[i] + gap for i in shown) - 1 <= width


def _gap(table: Table) -> int:
    """Columns left free beside a cell: words beside words need more than numbers."""
    return int(sum(column.left for column in table.columns) > 1)


def _width(table: Table, i: int, details: bool) -> int:
    """Width that a column needs: its longest cell, but words may be folded."""
    column = table.columns[i]
    texts = [str(cells[i]) if details else cells[i].text for cells in table.rows]
    longest = max(map(len, (*column.head.split("\n"), *texts)))
    return min(longest, LEAST_NAME) if column.left else longest
