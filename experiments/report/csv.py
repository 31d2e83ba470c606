"""Tables as CSV (RFC 4180, UTF-8): numbers are plain, so that any program can compute with them."""

import csv
import io
import re
from collections.abc import Sequence

from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.table import NONE, Cell, Table

__all__ = ["table_csv"]

_PERCENT = re.compile(r"([+-]?\d+(?:\.\d+)?) ?%")


def table_csv(table: Table) -> str:
    """The rows of a table under the full names of its columns.

    An interval takes three columns, its bounds beside the estimate, in full precision where the table
    rounds. The sign of percents stands in the head. A second line of a cell has a column of its own. What
    has no value is empty.
    """
    heads: list[str] = []
    columns: list[Sequence[str]] = []
    for i, column in enumerate(table.columns):
        name = " ".join((column.name or column.head).split())
        cells = [row[i] for row in table.rows]
        if any(cell.value is not None for cell in cells):
            heads += [name, f"{name}: low", f"{name}: high"]
            columns += zip(*map(_bounds, cells), strict=True)
        else:
            texts = [_plain(cell) for cell in cells]
            percents = [_PERCENT.fullmatch(text) for text in texts if text]
            if percents and all(percents):
                name, texts = f"{name} (%)", [re.sub(" ?%", "", text) for text in texts]
            heads.append(name)
            columns.append([text.removeprefix("+") if _number(text) else text for text in texts])
        if any(cell.below for cell in cells):
            heads.append(f"{name}: note")
            columns.append([cell.below for cell in cells])
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(zip(*columns, strict=True))
    return written.getvalue()


def _bounds(cell: Cell) -> tuple[str, str, str]:
    value = cell.value
    if not isinstance(value, Interval):
        return _plain(cell), "", ""
    if not value.bounded:
        return str(value.estimate), "", ""
    return str(value.estimate), str(value.low), str(value.high)


def _plain(cell: Cell) -> str:
    return "" if str(cell) == NONE else str(cell)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
