"""The report of a run in the terminal: tables, verdicts, and notes on how to read them."""

from rich.console import Console

from treespec.experiments.report.budgets import budget_finding
from treespec.experiments.report.explanation import NOTE
from treespec.experiments.report.prediction import MISSING, prediction_finding
from treespec.experiments.report.results import (
    footnotes,
    hardware_line,
    result_table,
    settings_lines,
)
from treespec.experiments.report.run import Run
from treespec.experiments.report.terminal import moves, print_finding, print_table, say
from treespec.experiments.report.verdict import METHOD_NOTE

WIDTH = 104
"""Width of the complete table in characters; wider terminals are not filled."""


def print_run(run: Run, console: Console) -> None:
    print_results(run, console)
    if any(row.name != "time" for row in run.budgets):
        print_finding(budget_finding(run.budgets), console)
    if run.predictions or run.unpredicted:
        print_finding(prediction_finding(run.predictions, run.choices, run.unpredicted), console)
    elif run.manifest["config"].get("search") is not None:
        say(console, MISSING, "dim")


def print_results(run: Run, console: Console) -> None:
    width = min(WIDTH, console.width)
    moved = max((moves(result_table(summary), width) for summary in run.summaries), default=0)
    for line in settings_lines(run):
        say(console, line, width=width)
    for summary in run.summaries:
        print_table(result_table(summary), console, width, moved)
        console.print()
        for sentence in run.verdicts[summary.sampling]:
            say(console, sentence, width=width)
        if table := run.explanation_tables.get(summary.sampling):
            print_table(table, console, width)
    console.print()
    rows = [row for summary in run.summaries for row in summary.rows]
    explained = any(row.stage_ms is not None and row.method.kind == "tree" for row in rows)
    notes = [*footnotes(run, run.summaries), *([NOTE] if explained else [])]
    for note in (*notes, METHOD_NOTE, hardware_line(run)):
        say(console, note, "dim", width)
