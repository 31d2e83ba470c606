"""Findings as tables: what they hold is said once, and every medium has one way of writing it.

`terminal` writes a table with rich, `markdown` as Markdown, `html` as a part of a page, `tables` as CSV
and as LaTeX.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from treespec.search.intervals import Interval

__all__ = ["NONE", "Cell", "Column", "Finding", "Table", "interval", "keyed"]

NONE = "–"
"""Written where there is no value."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """What is written in one place of a table.

    Args:
        text: the value.
        detail: what follows it where there is room, in small letters where there are any: its interval.
        below: a second line, in small letters where there are any.
        shade: percent of the row's colour behind the cell; on pages only.
        value: what the text rounds, where it has an interval; for files of numbers.
    """

    text: str
    detail: str = ""
    below: str = ""
    shade: int | None = None
    value: Interval | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text


def interval(value: Interval | None, digits: int = 2, unit: str = "") -> Cell:
    """An estimate and, if it has one, its interval: as `Interval.text`, with the bounds as the detail.

    Args:
        value: None for none.
        digits: after the point.
        unit: written after the estimate and the upper bound.
    """
    if value is None:
        return Cell(NONE)
    bounds = value.bounds(digits, unit) if value.has_width else ""
    return Cell(f"{value.estimate:.{digits}f}{unit}", bounds, value=value)


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column, and how its cells are written.

    Args:
        head: short, for the terminal.
        write: makes the cell of a row.
        name: in full; the head by default.
        left: holds words, which are set flush left and may be folded.
        moves: a narrow terminal shows the columns with 1, then 2, ... in a second table; those with 0 stay.
        part: what a second table of such columns alone is called.
    """

    head: str
    write: Callable[[Item], Cell | str]
    name: str = ""
    left: bool = False
    moves: int = 0
    part: str = "the rest"

    def cell(self, item: Item) -> Cell:
        """The cell of a row."""
        written = self.write(item)
        return written if isinstance(written, Cell) else Cell(written)


def keyed(head: str, key: str, form: str = "", *, left: bool = False) -> Column[Mapping[str, Any]]:
    """A column of rows that are mappings.

    Args:
        head: see `Column`.
        key: of the value.
        form: how it is written, as `format` takes it; a value of None is written as `NONE`.
        left: see `Column`.
    """

    def write(row: Mapping[str, Any]) -> str:
        return NONE if row[key] is None else format(row[key], form)

    return Column(head, write, left=left)


def _nothing(item: object) -> str:
    return ""


@dataclass(frozen=True)
class Table(Generic[Item]):
    """Rows of one kind, under columns.

    Args:
        subject: what it is about, such as a sampling setting.
        columns: the first one names the rows.
        items: one for each row.
        caption: inside a section that says what the numbers are; the subject by default.
        title: where it stands alone; the caption by default.
        said: a sentence that follows from it.
        group: rows of one group stand together.
        colour: group of methods in whose colour the name is written.
        tone: `best`, `bad`, `doubtful`, `faint` or nothing.
    """

    subject: str
    columns: Sequence[Column[Item]]
    items: Sequence[Item]
    caption: str = ""
    title: str = ""
    said: str = ""
    group: Callable[[Item], str] = _nothing
    colour: Callable[[Item], str] = _nothing
    tone: Callable[[Item], str] = _nothing

    @property
    def heading(self) -> str:
        """The caption, inside a section."""
        return self.caption or self.subject

    @property
    def full_title(self) -> str:
        """The title, where it stands alone."""
        return self.title or self.heading

    @cached_property
    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells, row by row."""
        return tuple(tuple(column.cell(item) for column in self.columns) for item in self.items)

    def opens(self, index: int) -> bool:
        """Whether a row, but for the first, begins a group."""
        return index > 0 and self.group(self.items[index]) != self.group(self.items[index - 1])


@dataclass(frozen=True)
class Finding:
    """Tables that answer one question.

    Args:
        title: of the section.
        tables: one for each sampling setting, mostly.
        notes: how to read them.
        remarks: about these values.
    """

    title: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()
