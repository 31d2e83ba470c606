"""The report of a run: one HTML file that needs no network, and the figures as files."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template

from experiments import report_details as details
from experiments import report_sections as sections
from experiments.budgets_text import budget_section
from experiments.categories import category_section
from experiments.figure_style import inline_svg
from experiments.figures import draw_figures
from experiments.folder import RUN
from experiments.loading import load_run
from experiments.node_acceptance import count_all
from experiments.own_files import OwnFiles
from experiments.prediction_text import prediction_section
from experiments.report_acceptance import acceptance_section
from experiments.report_explanation import explanation_section
from experiments.report_meters import meters_section
from experiments.report_stepper import stepper_section
from experiments.report_trees import tree_section
from experiments.stepper_html import asset
from experiments.summary import summarise
from experiments.table_text import hardware_line

__all__ = ["write_report"]

TEMPLATE = Path(__file__).with_name("report_template.html")


def write_report(run_folder: Path) -> Path:
    """Write `report.html` and `figures/*.svg|png` into the folder of a run.

    An unfinished run is reported as far as it got, and says so.

    Args:
        run_folder: as SCHEMA.md describes it.

    Returns:
        The path of the report.

    Raises:
        ForeignFolder: if the folder has no mark of ours, or files of others are where the report goes.
        RunFolderError: see `experiments.loading.load_run`; also if kept trees, or the ranks of steps, do
            not fit together.
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
