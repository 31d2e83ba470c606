"""The report of a run: one HTML file that needs no network, and the figures as files."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template

from treespec.experiments.records.folder import RUN
from treespec.experiments.records.own_files import OwnFiles
from treespec.experiments.report import details, sections
from treespec.experiments.report.acceptance import count_all
from treespec.experiments.report.acceptance_section import acceptance_section
from treespec.experiments.report.budgets_text import budget_section
from treespec.experiments.report.categories import category_section
from treespec.experiments.report.explanation_section import explanation_section
from treespec.experiments.report.figure_style import inline_svg
from treespec.experiments.report.figures import draw_figures
from treespec.experiments.report.meters_section import meters_section
from treespec.experiments.report.prediction_text import prediction_section
from treespec.experiments.report.run import load_run
from treespec.experiments.report.stepper.html import asset
from treespec.experiments.report.stepper.section import stepper_section
from treespec.experiments.report.summary import summarise
from treespec.experiments.report.table_text import hardware_line
from treespec.experiments.report.trees_section import tree_section

__all__ = ["write_report"]

TEMPLATE = Path(__file__).parent / "templates" / "report.html"


def write_report(run_folder: Path) -> Path:
    """Write `report.html` and `figures/*.svg|png` into the folder of a run.

    An unfinished run is reported as far as it got, and says so.

    Args:
        run_folder: as SCHEMA.md describes it.

    Returns:
        The path of the report.

    Raises:
        ForeignFolder: if the folder has no mark of ours, or files of others are where the report goes.
        RunFolderError: see `report.run.load_run`; also if kept trees, or the ranks of steps, do not fit
            together.
    """
    run = load_run(run_folder)
    files = OwnFiles.opened(run.folder, RUN)
    summaries = summarise(run)
    counts = count_all(run)
    stepper = stepper_section(run)
    figures = draw_figures(run, run.folder / "figures", _keeper(files))
    body = [
        sections.verdict_section(run),
        sections.result_section(run, summaries),
        sections.comparison_section(run),
        budget_section(run),
        category_section(run),
        sections.figure_section((name, inline_svg(path)) for name, path in figures.items()),
        explanation_section(run),
        acceptance_section(run, counts),
        tree_section(run, counts),
        stepper,
        details.equality_section(run, summaries),
        prediction_section(run),
        sections.speedup_section(summaries),
        details.samples_section(run, summaries),
        details.tuning_section(run),
        details.error_section(run),
        meters_section(run),
        details.environment_section(run),
    ]
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(run.manifest["name"]),
        subtitle=escape(hardware_line(run)),
        stepper_style=asset("stepper.css") if stepper else "",
        body="\n".join(part for part in body if part),
    )
    return files.write("report.html", page)


def _keeper(files: OwnFiles) -> Callable[[Path, bytes], Path]:
    """Writes files of a folder, and keeps them in its list."""
    return lambda path, content: files.write(path.relative_to(files.path).as_posix(), content)
