"""Tables and findings in a terminal."""

from collections.abc import Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from treespec.errors import visible
from treespec.experiments.report.table import Finding, Table

LEAST_NAME = 19

STYLES = {"best": "bold", "bad": "red", "doubtful": "yellow", "faint": "dim"}


def say(console: Console, text: str, style: str | None = None, width: int | None = None) -> None:
    console.print(escape(visible(text)), style=style, width=width, highlight=False)


def print_finding(finding: Finding | None, console: Console) -> None:
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
    """Print a table so that it fits into `width` characters.

    Columns that may move (`moves` up to `moved`; as many as necessary by default) are shown in a second
    table; if no column is marked as movable, those on the right move.
    """
    width = min(width or console.width, console.width)
    layout = _Layout(table, width)
    for title, shown in layout.parts(moves(table, width) if moved is None else moved):
        console.print()
        console.print(layout.table(title, shown), width=width)


def moves(table: Table, width: int) -> int:
    """The smallest `moved` with which the first table fits, or the largest that the table has."""
    layout = _Layout(table, width)
    last = max((column.moves for column in table.columns), default=0)
    return next((n for n in range(last) if layout.fits(layout.split(n)[0])), last)


class _Layout:
    """The printed texts of a table, and the widths of its columns."""

    def __init__(self, table: Table, width: int) -> None:
        self.every = list(range(len(table.columns)))
        self._table, self._width = table, width
        self._texts = [
            [visible(f"{c}\n{c.below}" if c.below else str(c)) for c in cells]
            for cells in table.rows
        ]
        self._heads = [
            "\n".join(
                part
                for line in visible(c.head).split("\n")
                for part in wrap(line, LEAST_NAME) or [""]
            )
            for c in table.columns
        ]
        self._widths = []
        for i, column in enumerate(table.columns):
            texts = [self._heads[i], *(row[i] for row in self._texts)]
            longest = max(len(line) for text in texts for line in text.split("\n"))
            self._widths.append(min(longest, LEAST_NAME) if column.left else longest)
        # columns of words need more space between them than columns of numbers
        self._gap = 2 * (sum(column.left for column in table.columns) > 1)
        if not self.fits(self.every):
            self._gap = 0

    def fits(self, shown: Sequence[int]) -> bool:
        return sum(self._widths[i] + 1 + self._gap for i in shown) - 1 <= self._width

    def split(self, moved: int) -> tuple[list[int], list[int]]:
        """Columns of the first table, and columns that move to further tables.

        If no column is marked as movable, those that do not fit move.
        """
        if not any(column.moves for column in self._table.columns):
            stay = self.every[:1]
            while len(stay) < len(self.every) and self.fits([*stay, len(stay)]):
                stay.append(len(stay))
            return stay, self.every[len(stay) :]
        leave = [i for i in self.every if 0 < self._table.columns[i].moves <= moved]
        return [i for i in self.every if i not in leave], leave

    def parts(self, moved: int) -> list[tuple[str, list[int]]]:
        staying, rest = self.split(moved)
        parts = [(self._table.full_title, staying)]
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
        rich = RichTable(
            title=escape(visible(title)) or None, title_justify="left", title_style="bold",
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
