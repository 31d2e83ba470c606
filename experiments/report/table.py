"""The table of a run: in the terminal, and as Markdown."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.explanation import explanations
from treespec.experiments.report.explanation_text import (
    NOTE,
    explanation_markdown,
    explanation_table,
)
from treespec.experiments.report.measurements import measure
from treespec.experiments.report.meters import meter_notes
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import SamplingSummary, summarise
from treespec.experiments.report.table_text import (
    COLUMNS,
    caption,
    cells,
    columns_of,
    footnotes,
    hardware_line,
)
from treespec.experiments.report.verdict import METHOD_NOTE, sentences

__all__ = ["WIDTH", "markdown_table", "print_table"]

WIDTH = 104
"""Columns that the whole table fits in; a wider terminal is not filled."""

LEAST_NAME = 19
"""Columns that a method's name keeps before others are left out; longer names are folded."""

MOVED_FIRST = (STAGES, ("waste",), ("acc",), ("equal",), ("tok/s",), ("tok/step",))
"""What a narrow terminal shows in a second table, in this order: nothing is left out."""


def print_table(run_folder: Path, console: Console) -> None:
    """Print a table per sampling setting, the verdict, and what one must know to read them.

    Raises:
        RunFolderError: see `treespec.experiments.report.run.load_run`.
    """
    run = load_run(run_folder)
    width = min(WIDTH, console.width)
    verdict = sentences(run)
    summaries = summarise(run)
    moved = max((_moved(summary, width) for summary in summaries), default=0)
    for summary in summaries:
        for title, shown in _parts(summary, moved, width):
            console.print()
            console.print(_terminal_table(summary, title, shown), width=width)
        console.print()
        for sentence in verdict[summary.sampling]:
            console.print(escape(sentence), width=width, highlight=False)
        found = explanations(measure(run, summary.sampling))
        if found:
            console.print()
            parts = explanation_table(found, summary.sampling, summary.baseline, width)
            console.print(parts, width=width)
    console.print()
    for note in _notes(run, summaries):
        console.print(f"[dim]{escape(note)}[/dim]", width=width, highlight=False)


def markdown_table(run_folder: Path) -> str:
    """The same tables, verdict and notes as Markdown.

    Raises:
        RunFolderError: see `treespec.experiments.report.run.load_run`.
    """
    run = load_run(run_folder)
    verdict = sentences(run)
    blocks = []
    for summary in (summaries := summarise(run)):
        keep = columns_of(summary)
        heads = [COLUMNS[i].name for i in keep]
        lines = [heads, ["---", *["---:"] * (len(keep) - 1)]]
        for row in summary.rows:
            values = [_escape_markdown(cells(row, summary)[i]) for i in keep]
            lines.append([f"**{values[0]}**" if row.among_fastest else values[0], *values[1:]])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks += [f"**{caption(summary)}**", table, *verdict[summary.sampling]]
        found = explanations(measure(run, summary.sampling))
        if found:
            blocks.append(explanation_markdown(found, summary.sampling, summary.baseline))
    notes = "\n".join(f"- {note}" for note in _notes(run, summaries))
    return "\n\n".join([*blocks, notes.replace("- * and bold:", "- **bold** \\*:")]) + "\n"


def _notes(run: Run, summaries: tuple[SamplingSummary, ...]) -> list[str]:
    """What stands below the tables."""
    rows = [row for summary in summaries for row in summary.rows]
    explained = any(row.stage_ms is not None and row.method.kind == "tree" for row in rows)
    notes = [*footnotes(run, summaries), *([NOTE] if explained else []), *meter_notes(run)]
    return [*notes, METHOD_NOTE, hardware_line(run)]


def _terminal_table(summary: SamplingSummary, title: str, shown: list[int]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    for i in shown:
        head = COLUMNS[i].head
        table.add_column(
            f"{head}\nms" if head in STAGES else head,
            justify="left" if i == 0 else "right",
            no_wrap=i != 0,
            overflow="fold",
            min_width=_width(summary, i),
        )
    group = summary.rows[0].method.group if summary.rows else None
    for row in summary.rows:
        if row.method.group != group:
            table.add_section()
            group = row.method.group
        values = cells(row, summary)
        style = "bold" if row.among_fastest else None
        table.add_row(*(escape(values[i]) for i in shown), style=style)
    return table


def _moved(summary: SamplingSummary, width: int) -> int:
    """How many entries of `MOVED_FIRST` must leave the first table for it to fit."""
    for moved in range(len(MOVED_FIRST)):
        if _fits(summary, _split(summary, moved)[0], width):
            return moved
    return len(MOVED_FIRST)


def _split(summary: SamplingSummary, moved: int) -> tuple[list[int], list[int]]:
    """Columns of the first table, and those that left it."""
    heads = {head for entry in MOVED_FIRST[:moved] for head in entry}
    columns = columns_of(summary)
    return (
        [i for i in columns if COLUMNS[i].head not in heads],
        [i for i in columns if COLUMNS[i].head in heads],
    )


def _parts(summary: SamplingSummary, moved: int, width: int) -> list[tuple[str, list[int]]]:
    """The tables of a sampling setting: title, and columns that fit with a space between them."""
    first, rest = _split(summary, moved)
    parts = [(caption(summary), first)]
    while rest and summary.rows:
        shown = [0, rest.pop(0)]
        while rest and _fits(summary, [*shown, rest[0]], width):
            shown.append(rest.pop(0))
        stages = all(COLUMNS[i].head in STAGES for i in shown[1:])
        parts.append((f"{summary.sampling}: {'time of a step' if stages else 'the rest'}", shown))
    return parts


def _fits(summary: SamplingSummary, shown: list[int], width: int) -> bool:
    return sum(_width(summary, i) + 1 for i in shown) - 1 <= width


def _width(summary: SamplingSummary, i: int) -> int:
    """Width that a column needs: its longest cell, but names may be folded."""
    longest = max(len(COLUMNS[i].head), *(len(cells(row, summary)[i]) for row in summary.rows), 0)
    return min(longest, LEAST_NAME) if i == 0 else longest


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
