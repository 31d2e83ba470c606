"""Tables and findings, defined once and rendered by every medium.

`terminal` renders a table with rich, `html` as part of a page, and `tables` as CSV and LaTeX.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from treespec.search.intervals import Interval

NONE = "–"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """The content of one cell.

    `detail` follows the text where there is room, typically the interval; `below` is a second line; both
    are small print where the medium has it. `shade` is the percentage of the row's colour behind the
    cell, on pages. `value` is the unrounded value, for CSV files; None if the text is all there is.
    """

    text: str
    detail: str = ""
    below: str = ""
    shade: int | None = None
    value: Interval | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text


def interval(value: Interval | None, digits: int = 2, unit: str = "") -> Cell:
    """A cell with an estimate and its interval, if any: like `Interval.text`, with the bounds as detail."""
    if value is None:
        return Cell(NONE)
    bounds = value.bounds(digits, unit) if value.has_width else ""
    return Cell(f"{value.estimate:.{digits}f}{unit}", bounds, value=value)


def interval_columns(name: str, value: Interval | None) -> dict[str, float | None]:
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    bounds = (value.low, value.high) if value.bounded else (None, None)
    return {name: value.estimate, f"{name}_low": bounds[0], f"{name}_high": bounds[1]}


Words = Callable[[str], str]
"""Another wording of a text."""


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a table: a short heading for the terminal, and a full one (`name`; `head` by default).

    Columns of words (`left`) are left-aligned and may wrap. A narrow terminal moves columns to a second
    table, titled `part` if it holds only such columns: those with `moves` 1 first, then 2, ...; columns
    with 0 stay.
    """

    head: str
    write: Callable[[Item], Cell | str]
    name: str = ""
    left: bool = False
    moves: int = 0
    part: str = "the rest"

    def cell(self, item: Item) -> Cell:
        written = self.write(item)
        return written if isinstance(written, Cell) else Cell(written)

    def reworded(self, words: Words) -> "Column[Item]":
        def write(item: Item) -> Cell:
            cell = self.cell(item)
            return replace(cell, text=words(cell.text))

        return replace(self, write=write)


def keyed(head: str, key: str, form: str = "", *, left: bool = False) -> Column[Mapping[str, Any]]:
    return Column(head, lambda row: NONE if row[key] is None else format(row[key], form), left=left)


@dataclass(frozen=True)
class Table(Generic[Item]):
    """Items of one type, rendered by columns, of which the first one names the rows.

    `caption` is the heading inside a section (the subject by default), `title` that of the table on its
    own (the caption by default), and `said` a conclusion in sentences. The table is divided where the
    `group` of a row changes; `colour` is the method group whose colour its name takes; `tone` its
    emphasis: `best`, `bad`, `doubtful`, `faint` or empty.
    """

    subject: str
    columns: Sequence[Column[Item]]
    items: Sequence[Item]
    caption: str = ""
    title: str = ""
    said: str = ""
    group: Callable[[Item], str] = lambda item: ""
    colour: Callable[[Item], str] = lambda item: ""
    tone: Callable[[Item], str] = lambda item: ""

    @property
    def heading(self) -> str:
        return self.caption or self.subject

    @property
    def full_title(self) -> str:
        return self.title or self.heading

    @cached_property
    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        return tuple(tuple(column.cell(item) for column in self.columns) for item in self.items)

    def reworded(self, words: Words) -> "Table[Item]":
        return replace(
            self, columns=[column.reworded(words) for column in self.columns], said=words(self.said)
        )

    def opens(self, index: int) -> bool:
        return index > 0 and self.group(self.items[index]) != self.group(self.items[index - 1])

    def repeats(self, index: int) -> bool:
        """Whether a row has the name of the row above it in its group: pages write it once."""
        if not index or self.opens(index) or not self.group(self.items[index]):
            return False
        return self.rows[index][0] == self.rows[index - 1][0]


@dataclass(frozen=True)
class Finding:
    """Tables that answer one question, how to read them (`notes`), and remarks about these values."""

    title: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()

    def reworded(self, words: Words) -> "Finding":
        return replace(
            self,
            tables=[table.reworded(words) for table in self.tables],
            remarks=[words(remark) for remark in self.remarks],
        )


def markdown(table: Table) -> str:
    """A table in Markdown under its title; the names of the best rows are bold."""
    lines = [
        [column.name or column.head for column in table.columns],
        ["---" if column.left else "---:" for column in table.columns],
    ]
    for item, cells in zip(table.items, table.rows, strict=True):
        name, *values = (str(cell).replace("|", "\\|").replace("*", "\\*") for cell in cells)
        lines.append([f"**{name}**" if table.tone(item) == "best" else name, *values])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.full_title}**\n\n{text}" if table.full_title else text
