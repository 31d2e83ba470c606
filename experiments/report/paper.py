"""What a paper takes from a run: its tables, its figures in the width of a column, and what it cites."""

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from treespec import plugins
from treespec.experiments.config.files import require_one_line
from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.figures import drawn
from treespec.experiments.report.run import Run
from treespec.experiments.report.tables import FORMS, report_tables
from treespec.files import write_whole

COLUMN_INCHES, COLUMN_LETTERS = 3.4, 7.5
"""Width of a column of a page with two, and size of its letters in points."""


def write_paper(run: Run, folder: Path, columns: str = "") -> list[Path]:
    """Write every table as CSV and as LaTeX, every figure as PDF, and the papers to cite as BibTeX.

    The result tables have these columns (`summary.result_tables`). Files of the same names are replaced.
    """
    require_one_line(folder, RunFolderError, "--tables ")
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"--tables {folder} is not a folder: name another place")
    contents: dict[str, str | bytes] = {
        f"{name}.{suffix}": write(table)
        for name, table in report_tables(run, columns).items()
        for suffix, write in FORMS.items()
    }
    for name, figure in drawn(run, COLUMN_INCHES, COLUMN_LETTERS):
        pdf = BytesIO()
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
        contents[f"figure-{name}.pdf"] = pdf.getvalue()
    contents["references.bib"] = references(run)
    folder.mkdir(parents=True, exist_ok=True)
    return [write_whole(folder / name, content) for name, content in contents.items()]


def references(run: Run) -> str:
    """BibTeX of the papers of the acceptance rules, draft sources, trees and growths of a run.

    A rule states its paper; the `keywords` of an entry in `references.bib` name the rest by their kind.
    """
    entries = re.split(r"\n(?=@)", Path(__file__).with_name("references.bib").read_text("utf-8"))
    rules, used = plugins.parts("rule"), set(_kinds(run.manifest["methods"]))
    used |= set(_kinds(run.manifest["config"].get("methods")))
    for method in run.methods:
        for name in set(method.rule.values()) & set(rules):
            used |= set(re.findall(r"\d{4}\.\d{5}", rules[name].make.reference))
    named = [re.findall(r"(?:eprint|keywords) += \{(.*)\}", entry) for entry in entries]
    return "\n".join(
        entry
        for entry, names in zip(entries, named, strict=True)
        if used & {name for listed in names for name in listed.split(", ")}
    )


def _kinds(described: Any) -> Iterator[str]:
    """The kinds of sources, trees and growths anywhere in what describes methods."""
    if isinstance(described, dict):
        named = (described.get(key) for key in ("kind", "source"))
        yield from (kind for kind in named if isinstance(kind, str))
    for part in described.values() if isinstance(described, dict) else described or ():
        if isinstance(part, dict | list | tuple):
            yield from _kinds(part)
