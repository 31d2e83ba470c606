"""All tables of a report as files: LaTeX with booktabs rules, and CSV (RFC 4180, UTF-8).

Numbers in CSV are plain, so that any program can compute with them.
"""

import csv
import io
import re
from collections.abc import Sequence
from itertools import chain, count

from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import result_tables
from treespec.experiments.report.table import NONE, Cell, Table
from treespec.search.intervals import Interval

_PERCENT = re.compile(r"([+-]?\d+(?:\.\d+)?) ?%")


def table_csv(table: Table) -> str:
    """Write a table as CSV, with the full names of its columns as header.

    An interval takes three columns: the estimate and both bounds, unrounded. Percent signs move to the
    header. The second line of a cell gets its own column. Missing values are empty. An apostrophe is
    before text that a spreadsheet would compute as a formula.
    """
    heads: list[str] = []
    columns: list[Sequence[str]] = []
    for i, column in enumerate(table.columns):
        name = " ".join((column.name or column.head).split()).removeprefix("= ")
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
    buffer = io.StringIO()
    rows = ([*map(_no_formula, row)] for row in [heads, *zip(*columns, strict=True)])
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _bounds(cell: Cell) -> tuple[str, str, str]:
    value = cell.value
    if not isinstance(value, Interval):
        return _plain(cell), "", ""
    if not value.bounded:
        return str(value.estimate), "", ""
    return str(value.estimate), str(value.low), str(value.high)


def _plain(cell: Cell) -> str:
    return "" if str(cell) == NONE else str(cell)


def _no_formula(text: str) -> str:
    """The text of a cell, after an apostrophe if a spreadsheet would take it for a formula."""
    begins = text[:1] in (*"=+-@\t\r＝＋－＠",)
    return f"'{text}" if begins and not _number(text) and not _PERCENT.fullmatch(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_LETTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "–": "--", "—": "---", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "−": "$-$",
    "²": r"\textsuperscript{2}", "≤": r"$\le$", "≥": r"$\ge$", "…": r"\dots{}", "\u00a0": "~",
    "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
"""Characters special to LaTeX (some only after the end of a row), and characters that old engines lack."""


def table_latex(table: Table) -> str:
    """Write a table as a LaTeX `tabular`, with the title as a comment above it.

    The best rows are bold, intervals are small, and groups of rows are separated by a little space.
    """
    title = " ".join(table.full_title.split())
    lines = [f"% {title}"] if title else []
    lines += [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{" + "".join("l" if c.left else "r" for c in table.columns) + "}",
        r"\toprule",
        _row([escaped(" ".join((c.name or c.head).split())) for c in table.columns]),
        r"\midrule",
    ]
    for i, (item, cells) in enumerate(zip(table.items, table.rows, strict=True)):
        if table.opens(i):
            lines.append(r"\addlinespace")
        best = table.tone(item) == "best"
        texts = ["" if table.repeats(i) else _cell(cells[0]), *map(_cell, cells[1:])]
        lines.append(_row([rf"\textbf{{{text}}}" if best and text else text for text in texts]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Escape all characters special to LaTeX; unprintable ones, line ends among them, become spaces.

    Example:
        >>> escaped("top_p 90 %")
        'top\\\\_p 90 \\\\%'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return "".join(_LETTERS.get(letter, letter) for letter in printable)


def _row(texts: list[str]) -> str:
    return " & ".join(texts) + r" \\"


def _cell(cell: Cell) -> str:
    small = [escaped(part) for part in (cell.detail, cell.below and f"({cell.below})") if part]
    text = escaped(cell.text)
    return " ".join([text, rf"{{\footnotesize {' '.join(small)}}}"]) if small else text


FORMS = {"csv": table_csv, "tex": table_latex}


def report_tables(run: Run, columns: str = "") -> dict[str, Table]:
    """Every table of the report that has rows, by a name that is valid as a file name.

    The result tables have these columns (`summary.result_tables`). A name holds the topic of the table
    and, after a hyphen, its sampling setting: `results-T=0`.
    """
    tables: dict[str, Table] = {}
    results = (("results", table) for table in result_tables(run.summaries, columns))
    findings = (
        (topic, table)
        for topic, finding in run.findings.items()
        for table in (finding.tables if finding else ())
    )
    for topic, table in chain(results, findings):
        if table.items:
            parts = [re.sub(r"[^\w.=+-]+", "-", text).strip("-") for text in (topic, table.subject)]
            stem = "-".join(part for part in parts if part)
            names = chain([stem], (f"{stem}-{number}" for number in count(2)))
            tables[next(name for name in names if name not in tables)] = table
    return tables
