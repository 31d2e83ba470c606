"""What the shipped studies found, as files that are kept, and the README's table of equal budgets.

    python -m treespec.experiments.studies.studies runs/equal_budget sweeps/context_length ...

For each finished run or sweep (`make studies` makes them): `results/study-<name>-<machine>.json` with its
tables, verdicts and comparisons, and the config, versions, hardware and commit that its manifest has. A run
that holds trees and chains of equal size is printed as a table in Markdown.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.benchmarks.results_file import path_of
from treespec.experiments.cli.json import plain_data, report_data
from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.budgets import Budget, budgets
from treespec.experiments.report.categories import categories
from treespec.experiments.report.measurements import samplings_of
from treespec.experiments.report.prediction import pace_of, predictions
from treespec.experiments.report.run import Run, load_run, read_manifest
from treespec.experiments.report.scaling import scaling
from treespec.experiments.report.table_text import interval_text

ABOUT = ("treespec_version", "git_hash", "versions", "hardware")
OF_JOB = (*ABOUT, "config", "models", "methods")
OF_RUN = (*OF_JOB, "warmup", "errors")
COLUMNS = (
    *("method", "kind", "group", "law", "rule", "parents", "lossless", "tokens_per_step"),
    *("tokens_per_second", "speedup", "step_ms", "stage_ms", "wasted", "equality"),
)


def study_of_run(folder: Path) -> dict[str, Any]:
    """All that a run found, and what it was measured with.

    Raises:
        RunFolderError: if it is not finished.
    """
    run = load_run(folder)
    if not run.finished:
        raise RunFolderError(f"{folder} is not finished: the same `treespec run` command goes on")
    data = report_data(folder, folder / "report.html")
    for setting in data["samplings"]:
        setting["methods"] = [
            {name: row[name] for name in COLUMNS if name in row} for row in setting["methods"]
        ]
    figures: dict[str, Any] = {"samplings": data["samplings"]}
    figures["budgets"] = [asdict(row) for row in budgets(run)]
    figures["categories"] = [asdict(row) for row in categories(run)]
    figures["scaling"] = {name: scaling(run, name) for name in samplings_of(run)}
    errors = ("tokens_error", "speed_error", "speed_error_at_pace")
    figures["predictions"] = [
        asdict(row) | {name: getattr(row, name) for name in errors} for row in predictions(run)
    ]
    rounds, paces = pace_of(run) or (0, None)
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
    rows = budgets(run)
    if all(row.name == "time" for row in rows):
        return ""
    lines = [
        "| equal | compared by | best tree | best chain | tree over chain | |",
        "| --- | --- | --- | --- | ---: | --- |",
    ]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(row: Budget) -> str:
    duel = row.duel
    said = "not decided" if duel.winner is None else f"{duel.winner.family} better"
    ratio = interval_text(duel.ratio)
    equal = f"{row.name}, {row.sampling}"
    return (
        f"| {equal} | {row.measure} | {duel.left.label} | {duel.right.label} | {ratio} | {said} |"
    )


def main() -> None:
    """Read, write, print."""
    console = Console(width=140, soft_wrap=True)
    if len(sys.argv) == 1:
        raise SystemExit("give folders of runs and sweeps, such as runs/equal_budget")
    for folder in map(Path, sys.argv[1:]):
        sweep = (folder / "sweep.json").is_file()
        try:
            found = study_of_sweep(folder) if sweep else study_of_run(folder)
        except TreespecError as error:
            raise SystemExit(f"error: {error}") from None
        path = path_of(f"study-{folder.name}")
        data = {"benchmark": f"study-{folder.name}", **found}
        path.write_text(json.dumps(plain_data(data), indent=1, ensure_ascii=False) + "\n", "utf-8")
        console.print(f"written: {path}", highlight=False)
        if not sweep:
            console.print(budget_table(load_run(folder)), markup=False, highlight=False)


if __name__ == "__main__":
    main()
