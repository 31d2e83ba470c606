"""Save the findings of finished runs and sweeps as result files.

    python -m treespec.experiments.research.studies.studies runs/equal_budget sweeps/context_length ...

For each finished run or sweep (`make studies` produces them), write `results/study-<name>-<machine>.json`
with its tables, verdicts and comparisons, and the config, versions, hardware and commit from its manifest;
and for a run `results/records-<name>-<machine>.parquet`, with the tokens, steps and seconds of every prompt
under every method, from which its sentences can be computed anew (`studies.sentences`), and the same facts
in the file's metadata.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import read_manifest
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.run import Run, load_run, report_data
from treespec.experiments.report.terminal import say
from treespec.experiments.research.benchmarks.results_file import of_manifest, path_of, write

COLUMNS = (
    *("method", "kind", "group", "law", "rule", "parents", "lossless", "tokens_per_step"),
    *("tokens_per_second", "speedup", "step_ms", "stage_ms", "wasted", "equality"),
)


RECORD_SCHEMA = {
    "sampling": pl.String,
    "prompt": pl.Int64,
    "file": pl.Int64,
    "method": pl.String,
    "group": pl.String,
    "lossless": pl.Boolean,
    "tokens": pl.Float64,
    "steps": pl.Float64,
    "seconds": pl.Float64,
}


def study_of_run(run: Run) -> dict[str, Any]:
    """The findings of a run, and what they were measured with.

    Raises:
        RunFolderError: if the run is not finished.
    """
    if not run.finished:
        raise RunFolderError(
            f"{run.folder} is not finished: repeat the same `treespec run` command to continue it"
        )
    data = report_data(run, run.folder / "report.html")
    for setting in data["samplings"]:
        setting["methods"] = [
            {name: row[name] for name in COLUMNS if name in row} for row in setting["methods"]
        ]
    return {
        **of_manifest(run.manifest, "methods", "warmup", "errors"),
        "busy_percent": [
            session.get("busy_percent") for session in run.manifest.get("sessions") or ()
        ],
        "figures": {
            "samplings": data["samplings"],
            "budgets": run.budgets,
            "categories": run.categories,
            "scaling": run.scaling,
            "predictions": [
                asdict(row) | {"tokens_error": row.tokens_error, "speedup_error": row.speedup_error}
                for row in run.predictions
            ],
        },
    }


def records_of_run(run: Run) -> pl.DataFrame:
    """The compared prompts of a run: sampling, prompt, its file (if excerpts), method, group, and sums."""
    tables = []
    for sampling, data in run.measurements.items():
        for method in data.methods:
            columns = {
                name: data.values[method.name, column]
                for name, column in (
                    ("tokens", "new_tokens"),
                    ("steps", "steps"),
                    ("seconds", "decode_s"),
                )
            }
            about = {
                "sampling": sampling,
                "prompt": data.prompts,
                "file": data.files or [None] * len(data.prompts),
                "method": method.name,
                "group": method.group,
                "lossless": method.lossless,
            }
            tables.append(pl.DataFrame({**about, **columns}, schema=RECORD_SCHEMA))
    return pl.concat(tables)


def study_of_sweep(folder: Path) -> dict[str, Any]:
    """The summary of a sweep, with the config of its first job and what that job was measured with."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    manifest = read_manifest(folder / "jobs" / summary["jobs"][0]["job"] / "run")
    figures = {
        "rows": summary["rows"],
        "notes": summary["notes"],
        "failed": [job for job in summary["jobs"] if job["error"] is not None],
    }
    return {**of_manifest(manifest, "methods"), "grid": summary["grid"], "figures": figures}


def main(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs and sweeps, such as runs/equal_budget.")
    ],
) -> None:
    """Write one result file for each run or sweep."""
    console = Console(width=140, soft_wrap=True)
    for folder in folders:
        sweep = (folder / "sweep.json").is_file()
        try:
            run = None if sweep else load_run(folder)
            study = study_of_sweep(folder) if run is None else study_of_run(run)
        except TreespecError as error:
            raise typer.BadParameter(str(error)) from None
        say(console, f"written: {write(f'study-{folder.name}', study)}")
        if run is not None:
            path = path_of(f"records-{folder.name}").with_suffix(".parquet")
            about = json.dumps(plain_data(of_manifest(run.manifest)))
            records_of_run(run).write_parquet(path, compression="zstd", metadata={"about": about})
            say(console, f"written: {path}")


if __name__ == "__main__":
    typer.run(main)
