"""Tables and findings in the terminal."""

from collections.abc import Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from treespec.experiments.report.table import Cell, Finding, Table

__all__ = ["print_finding", "print_table", "say"]

LEAST_NAME = 19
"""Columns that words keep before anything is moved or left out; longer ones are folded."""

NARROWER = ((True, 12), (False, LEAST_NAME), (False, 6))
"""Tried where not even two columns fit: whether intervals are printed, and columns that words keep."""

STYLES = {"best": "bold", "bad": "red", "doubtful": "yellow", "faint": "dim"}


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

    Columns that may move are shown in a second table; where none is named, those on the right. Only where
    two columns do not fit beside each other are words folded further, and intervals left out.

    Args:
        table: what is printed.
        console: where to.
        width: columns at most; those of the console by default.
        moved: how many steps of moving have been taken; as many as it needs by default.
    """
    width = min(width or console.width, console.width)
    layout = _Layout(table, width)
    for details, word in NARROWER:
        if all(layout.fits([0, i]) for i in layout.every[1:]):
            break
        layout = _Layout(table, width, details=details, least_word=word)
    for title, shown in layout.parts(moves(table, width) if moved is None else moved):
        console.print()
        console.print(layout.table(title, shown), width=width)


def moves(table: Table, width: int) -> int:
    """How many steps of moving columns it takes until the first table fits."""
    layout = _Layout(table, width)
    last = max((column.moves for column in table.columns), default=0)
    return next((n for n in range(last) if layout.fits(layout.split(n)[0])), last)


class _Layout:
    """What of a table is printed, and how wide.

    Args:
        table: that is printed.
        width: columns at most.
        details: whether intervals are printed.
        least_word: columns that words keep.
    """

    def __init__(
        self, table: Table, width: int, *, details: bool = True, least_word: int = LEAST_NAME
    ) -> None:
        self.every = list(range(len(table.columns)))
        self._table, self._width = table, width
        self._texts = [[_written(cell, details) for cell in cells] for cells in table.rows]
        self._heads = [
            "\n".join(
                part for line in c.head.split("\n") for part in wrap(line, LEAST_NAME) or [""]
            )
            for c in table.columns
        ]
        self._widths = []
        for i, column in enumerate(table.columns):
            texts = [self._heads[i], *(row[i] for row in self._texts)]
            longest = max(len(line) for text in texts for line in text.split("\n"))
            self._widths.append(min(longest, least_word) if column.left else longest)
        # columns of words need more space between them than numbers
        self._gap = 2 * (sum(column.left for column in table.columns) > 1)
        if not self.fits(self.every):
            self._gap = 0

    def fits(self, shown: Sequence[int]) -> bool:
        """Whether these columns fit beside each other."""
        return sum(self._widths[i] + 1 + self._gap for i in shown) - 1 <= self._width

    def split(self, moved: int) -> tuple[list[int], list[int]]:
        """Columns of the first table, and those that have left it after this many steps.

        Where no column is said to move, those leave that do not fit.
        """
        if not any(column.moves for column in self._table.columns):
            stay = self.every[:1]
            while len(stay) < len(self.every) and self.fits([*stay, len(stay)]):
                stay.append(len(stay))
            return stay, self.every[len(stay) :]
        leaves = [i for i in self.every if 0 < self._table.columns[i].moves <= moved]
        return [i for i in self.every if i not in leaves], leaves

    def parts(self, moved: int) -> list[tuple[str, list[int]]]:
        """The tables that it becomes: title, and columns that fit."""
        first, rest = self.split(moved)
        parts = [(self._table.full_title, first)]
        while rest and self._table.items:
            shown = [0, rest.pop(0)]
            while rest and self.fits([*shown, rest[0]]):
                shown.append(rest.pop(0))
            names = {self._table.columns[i].part for i in shown[1:]}
            name = names.pop() if len(names) == 1 else "the rest"
            subject = self._table.subject or self._table.full_title
            parts.append((f"{subject}: {name}" if subject else name, shown))
        return parts

    def table(self, title: str, shown: Sequence[int]) -> RichTable:
        """These columns, as rich has them."""
        rich = RichTable(
            title=escape(title) or None, title_justify="left", title_style="bold",
            box=box.SIMPLE_HEAD, padding=(0, self._gap // 2), show_edge=False,
        )  # fmt: skip
        for i in shown:
            column = self._table.columns[i]
            rich.add_column(
                escape(self._heads[i]),
                justify="left" if column.left else "right",
                no_wrap=not column.left,
                overflow="fold",
                min_width=self._widths[i],
            )
        for i, (item, texts) in enumerate(zip(self._table.items, self._texts, strict=True)):
            if self._table.opens(i):
                rich.add_section()
            style = STYLES.get(self._table.tone(item))
            rich.add_row(*(escape(texts[j]) for j in shown), style=style)
        return rich


def _written(cell: Cell, details: bool) -> str:
    text = str(cell) if details else cell.text
    return f"{text}\n{cell.below}" if cell.below else text
