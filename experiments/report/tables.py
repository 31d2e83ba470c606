"""All tables of a report as files, for papers and for other programs."""

import re
from collections.abc import Iterator
from pathlib import Path

from treespec.experiments.errors import RunFolderError
from treespec.experiments.report import details
from treespec.experiments.report.acceptance import acceptance_finding
from treespec.experiments.report.budgets import budget_finding
from treespec.experiments.report.categories import category_finding
from treespec.experiments.report.csv import table_csv
from treespec.experiments.report.explanation import explanation_finding
from treespec.experiments.report.latex import table_latex
from treespec.experiments.report.meters import meter_finding
from treespec.experiments.report.prediction import prediction_finding
from treespec.experiments.report.results import result_table, speedup_finding
from treespec.experiments.report.run import Run
from treespec.experiments.report.table import Table
from treespec.experiments.report.times import times_finding
from treespec.experiments.report.verdict import comparison_finding
from treespec.search.whole_file import write_whole

__all__ = ["report_tables", "write_tables"]

FORMS = {"csv": table_csv, "tex": table_latex}


def report_tables(run: Run) -> dict[str, Table]:
    """Every table of the report that has rows, by a name that can be that of a file.

    A name says what the table is about and, after a hyphen, the sampling setting: `results-T=0`.
    """
    tables: dict[str, Table] = {}
    for what, table in _named(run):
        if table.items:
            parts = [re.sub(r"[^\w.=+-]+", "-", text).strip("-") for text in (what, table.subject)]
            name = start = "-".join(part for part in parts if part)
            number = 1
            while name in tables:
                number += 1
                name = f"{start}-{number}"
            tables[name] = table
    return tables


def _named(run: Run) -> Iterator[tuple[str, Table]]:
    yield from (("results", result_table(summary)) for summary in run.summaries)
    findings = {
        "comparisons": comparison_finding(run.comparisons),
        "budgets": budget_finding(run.budgets),
        "categories": category_finding(run.categories),
        "explanations": explanation_finding(run.explanation_tables),
        "acceptance": acceptance_finding(run.methods, run.acceptance),
        "predictions": prediction_finding(run.predictions, run.choices, run.pace),
        "speedups": speedup_finding(run.summaries),
        "errors": details.errors(run),
        "times": times_finding(run.times, run.measurements),
        "meters": meter_finding(run, run.metered),
    }
    for what, finding in findings.items():
        yield from ((what, table) for table in (finding.tables if finding else ()))
    if (equality := details.equality(run)) is not None:
        yield "equality", equality.table
    yield from (("tuning", table) for table in details.tunings(run))


def write_tables(run: Run, folder: Path) -> list[Path]:
    """Write every table of the report as CSV and as LaTeX (booktabs).

    Args:
        run: that is reported.
        folder: made if it is missing; files of these names in it are replaced, others stay.

    Returns:
        The files.

    Raises:
        RunFolderError: if the folder's name is that of a file.
        OSError: if a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"--tables {folder} is no folder: name another place")
    written = {
        folder / f"{name}.{end}": write(table)
        for name, table in report_tables(run).items()
        for end, write in FORMS.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [write_whole(path, text) for path, text in written.items()]
