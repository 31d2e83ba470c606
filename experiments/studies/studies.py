"""What the shipped studies found, as files that are kept, and the README's table of equal budgets.

    python -m treespec.experiments.studies.studies runs/equal_budget sweeps/context_length ...

For each finished run or sweep (`make studies` makes them): `results/study-<name>-<machine>.json` with its
tables, verdicts and comparisons, and the config, versions, hardware and commit that its manifest has. A run
that holds trees and chains of equal size is printed as a table in Markdown.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.benchmarks.results_file import path_of
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import read_manifest
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.budgets import COLUMNS as BUDGET_COLUMNS
from treespec.experiments.report.data import report_data
from treespec.experiments.report.markdown import markdown
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.table import Table
from treespec.search.whole_file import write_whole

ABOUT = ("treespec_version", "git_hash", "versions", "hardware")
OF_JOB = (*ABOUT, "config", "models", "methods")
OF_RUN = (*OF_JOB, "warmup", "errors")
COLUMNS = (
    *("method", "kind", "group", "law", "rule", "parents", "lossless", "tokens_per_step"),
    *("tokens_per_second", "speedup", "step_ms", "stage_ms", "wasted", "equality"),
)


def study_of_run(run: Run) -> dict[str, Any]:
    """All that a run found, and what it was measured with.

    Raises:
        RunFolderError: if it is not finished.
    """
    if not run.finished:
        raise RunFolderError(
            f"{run.folder} is not finished: the same `treespec run` command goes on"
        )
    data = report_data(run, run.folder / "report.html")
    for setting in data["samplings"]:
        setting["methods"] = [
            {name: row[name] for name in COLUMNS if name in row} for row in setting["methods"]
        ]
    figures: dict[str, Any] = {"samplings": data["samplings"]}
    figures["budgets"] = [asdict(row) for row in run.budgets]
    figures["categories"] = [asdict(row) for row in run.categories]
    figures["scaling"] = run.scaling
    errors = ("tokens_error", "speed_error", "speed_error_at_pace")
    figures["predictions"] = [
        asdict(row) | {name: getattr(row, name) for name in errors} for row in run.predictions
    ]
    rounds, paces = run.pace or (0, None)
    figures["pace"] = {"rounds": rounds, "stages": paces}
    about = {key: run.manifest.get(key) for key in OF_RUN}
    sessions = run.manifest.get("sessions") or []
    about["busy_percent"] = [session.get("busy_percent") for session in sessions]
    return {"measured": run.manifest["created"], **about, "figures": figures}


def study_of_sweep(folder: Path) -> dict[str, Any]:
    """The summary of a sweep, and the config of its first job and what that was measured with."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    manifest = read_manifest(folder / "jobs" / summary["jobs"][0]["job"] / "run")
    about = {key: manifest.get(key) for key in OF_JOB}
    figures = {key: summary[key] for key in ("rows", "notes")}
    figures["failed"] = [job for job in summary["jobs"] if job["error"] is not None]
    return {"measured": manifest["created"], **about, "grid": summary["grid"], "figures": figures}


def budget_table(run: Run) -> str:
    """Trees against chains at equal budgets in Markdown; empty if the run holds none but time."""
    if all(row.name == "time" for row in run.budgets):
        return ""
    equal, trees, chains, measure, *rest = BUDGET_COLUMNS
    equal = replace(equal, write=lambda row: f"{row.name}, {row.sampling}")
    return markdown(Table("", [equal, measure, trees, chains, *rest], run.budgets))


def main() -> None:
    """Read, write, print."""
    console = Console(width=140, soft_wrap=True)
    if len(sys.argv) == 1:
        raise SystemExit("give folders of runs and sweeps, such as runs/equal_budget")
    for folder in map(Path, sys.argv[1:]):
        sweep = (folder / "sweep.json").is_file()
        try:
            run = None if sweep else load_run(folder)
            study = study_of_sweep(folder) if run is None else study_of_run(run)
        except TreespecError as error:
            raise SystemExit(f"error: {error}") from None
        path = path_of(f"study-{folder.name}")
        data = {"benchmark": f"study-{folder.name}", **study}
        write_whole(path, json.dumps(plain_data(data), indent=1, ensure_ascii=False) + "\n")
        console.print(f"written: {path}", highlight=False)
        if run is not None:
            console.print(budget_table(run), markup=False, highlight=False)


if __name__ == "__main__":
    main()
