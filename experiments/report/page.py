"""The report of a run: a self-contained HTML file, and the figures as separate files."""

from pathlib import Path

from markupsafe import Markup

from treespec.experiments.records.folder import RunFolder
from treespec.experiments.report import details
from treespec.experiments.report.figure_style import inline_svg
from treespec.experiments.report.figures import DRAWINGS, draw_figures
from treespec.experiments.report.html import render
from treespec.experiments.report.results import (
    footnotes,
    hardware_line,
    result_table,
    settings_lines,
)
from treespec.experiments.report.run import Run
from treespec.experiments.report.stepper.replay import asset, stepper_section
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
        subtitle=" ".join([hardware_line(run), *settings_lines(run)]),
        method_note=METHOD_NOTE,
        results=[result_table(summary) for summary in run.summaries],
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
