"""The report of a run: a self-contained HTML file with figures as separate files, and the terminal's."""

from pathlib import Path

from markupsafe import Markup
from rich.console import Console

from treespec.experiments.records.folder import RunFolder
from treespec.experiments.report import details
from treespec.experiments.report.explanation import NOTE
from treespec.experiments.report.figure_style import inline_svg
from treespec.experiments.report.figures import DRAWINGS, draw_figures
from treespec.experiments.report.html import render
from treespec.experiments.report.next_right import compact_tables
from treespec.experiments.report.prediction import MISSING
from treespec.experiments.report.results import conditions, footnotes, settings_lines
from treespec.experiments.report.run import Run
from treespec.experiments.report.stepper.replay import asset, stepper_section
from treespec.experiments.report.summary import result_tables
from treespec.experiments.report.terminal import moves, print_finding, print_table, say
from treespec.experiments.report.tree_drawings import MOST_NODES, drawn_trees
from treespec.experiments.report.verdict import METHOD_NOTE


def write_report(run: Run) -> Path:
    """Write `report.html` and `figures/*.svg|png` into the folder of a run, and return the report's path.

    The report of an unfinished run covers the prompts so far, and says so.
    """
    folder, report = RunFolder(run.folder), run.folder / "report.html"
    folder.own_manifest()

    def keep(path: Path, content: bytes) -> Path:
        folder.keep(path, content)
        return path

    trees, steps = drawn_trees(run, run.acceptance), stepper_section(run)
    figures = {
        name: Markup(inline_svg(path))
        for name, path in draw_figures(run, run.folder / "figures", keep).items()
    }
    page = render(
        "report.html",
        run=run,
        subtitle=" ".join([conditions(run), *settings_lines(run)]),
        method_note=METHOD_NOTE,
        results=result_tables(run.summaries),
        result_notes=footnotes(run, run.summaries),
        findings=run.findings,
        figures=figures,
        captions={name: drawing.caption for name, drawing in DRAWINGS.items()},
        trees=trees,
        most_nodes=MOST_NODES,
        steps=steps,
        stepper_style=Markup(asset("stepper.css") if steps else ""),
        samples=details.samples(run, run.measurements),
        facts=details.facts(run),
        config=details.config(run),
    )
    folder.keep(report, page)
    return report


WIDTH = 104
"""Width of the complete table in characters; wider terminals are not filled."""


def print_run(run: Run, console: Console, columns: str = "") -> None:
    print_results(run, console, columns)
    if any(row.name != "time" for row in run.budgets):
        print_finding(run.findings["budgets"], console)
    for table in compact_tables(run.next_right):
        print_table(table.reworded(run.short), console, min(WIDTH, console.width))
    if run.predictions or run.unpredicted:
        print_finding(run.findings["predictions"], console)
    elif run.manifest["config"].get("search") is not None:
        say(console, MISSING, "dim")


def print_results(run: Run, console: Console, columns: str = "") -> None:
    """Print the result tables, of these columns (`summary.result_tables`), and what they mean."""
    width = min(WIDTH, console.width)
    tables = result_tables(run.summaries, columns)
    moved = max((moves(table, width) for table in tables), default=0)
    for line in (conditions(run), *settings_lines(run)):
        say(console, line, width=width)
    for table in tables:
        print_table(table, console, width, moved)
        console.print()
        for sentence in run.verdicts[table.subject]:
            say(console, sentence, width=width)
        if explanation := run.explanation_tables.get(table.subject):
            print_table(explanation, console, width)
    console.print()
    rows = [row for summary in run.summaries for row in summary.rows]
    explained = any(row.stage_ms is not None and row.method.kind == "tree" for row in rows)
    notes = [*footnotes(run, run.summaries), *([NOTE] if explained else [])]
    for note in (*notes, METHOD_NOTE):
        say(console, note, "dim", width)
