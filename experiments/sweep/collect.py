"""Collect the result of a sweep: the rows of all jobs, and a summary by job, setting and method."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from treespec.experiments.errors import RunFolderError, SweepError
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.records.rows import as_parquet
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import BatchSummary
from treespec.experiments.report.table import interval_columns
from treespec.experiments.sweep.attempts import JobOutcome, outcome_of
from treespec.files import write_whole

PREFIX = "sweep."
"""Prefix of columns named after keys of the grid: a run has a column `seed` of its own."""

METRIC_PREFIX = "metric."

SCHEMA_KEY = "treespec_sweep_schema_version"
"""Key in the Parquet metadata for the sweep's schema version; the version of a run's rows is beside it."""


@dataclass(frozen=True)
class Collected:
    """The collected result of a sweep.

    Args:
        prompts: the rows of all finished jobs, with `job` and a column for each key of the grid.
        summary: one row for each finished job, sampling setting and method.
    """

    outcomes: tuple[JobOutcome, ...]
    prompts: pl.DataFrame
    summary: pl.DataFrame
    notes: tuple[str, ...]

    def data(self, folder: Path) -> dict[str, Any]:
        """The result as plain data: the folder, every job with its state, the summary, the notes."""
        return {
            "folder": str(folder),
            "jobs": [outcome.data() for outcome in self.outcomes],
            "rows": self.summary.to_dicts(),
            "notes": list(self.notes),
        }

    @property
    def failed(self) -> tuple[JobOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)


def collect(folder: Path, manifest: Mapping[str, Any]) -> Collected:
    """Read all jobs that have run, and write `prompts.parquet`, `summary.parquet` and `summary.json`."""
    outcomes, prompts, rows = [], [], []
    for entry in manifest["jobs"]:
        job = folder / "jobs" / entry["name"]
        outcome = outcome_of(job)
        outcomes.append(outcome)
        if not outcome.ran:
            continue
        try:
            run = load_run(job / "run")
        except RunFolderError as error:
            if outcome.finished:
                raise SweepError(f"a finished job cannot be read: {error}") from None
            continue  # every row records an error, and the outcome says which
        values = _columns(entry, manifest["grid"])
        job_columns = pl.DataFrame([values], infer_schema_length=None)
        prompts.append(job_columns.join(run.prompts, how="cross"))
        rows += [values | row for row in _rows(run)]
    collected = Collected(
        tuple(outcomes),
        pl.concat(prompts, how="vertical_relaxed") if prompts else pl.DataFrame(),
        pl.DataFrame(rows, infer_schema_length=None),
        tuple(_notes(outcomes)),
    )
    _write(folder, manifest, collected)
    return collected


def _columns(entry: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """`job` and the grid's values: a number or a boolean if all values of the key are, else text."""
    values: dict[str, Any] = {"job": entry["name"]}
    for key, value in entry["values"].items():
        kinds = {type(swept) for swept in grid[key]}
        if kinds <= {int} or kinds <= {str} or kinds <= {bool}:
            values[PREFIX + key] = value
        elif kinds <= {int, float}:
            values[PREFIX + key] = float(value)
        else:
            values[PREFIX + key] = value if isinstance(value, str) else json.dumps(value)
    return values


def _rows(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "sampling": summary.sampling,
            "method": row.method.name,
            "group": row.method.group,
            "lossless": row.method.lossless,
            "prompts": summary.prompts,
            "errors": row.errors,
            **interval_columns("tokens_per_step", row.tokens_per_step),
            **interval_columns("tokens_per_second", row.tokens_per_second),
            **interval_columns("speedup", row.speedup),
            "step_ms": row.step_ms,
            "verify_ms": row.step_ms if row.stage_ms is None else row.stage_ms["verify"],
            "draft_ms": None if row.stage_ms is None else row.stage_ms["draft"],
            **_of_batch(row.batch),
            "wasted": row.wasted,
            "equal": row.equality.equal if row.equality.compared else None,
            "compared": row.equality.compared,
            "baseline": summary.baseline,
            "fastest": row.among_fastest,
            **{METRIC_PREFIX + name: value.estimate for name, value in row.metrics.items()},
        }
        for summary in run.summaries
        for row in summary.rows
    ]


def _of_batch(batch: BatchSummary) -> dict[str, Any]:
    speed = batch.text_tokens_per_second
    return {
        "text_tokens_per_second": None if speed is None else speed.estimate,
        "texts": batch.texts,
        "nodes": batch.nodes,
        "wasted_nodes": batch.wasted,
    }


def _notes(outcomes: Sequence[JobOutcome]) -> list[str]:
    attempts = [attempt.about for outcome in outcomes for attempt in outcome.attempts[-1:]]
    notes = []
    parallel = {about.get("workers", 1) or 0 for about in attempts} - {1}
    if parallel:
        most = max(parallel)
        jobs = f"up to {most} jobs ran in parallel" if most else "SLURM runs jobs in parallel"
        notes.append(
            f"Times: {jobs}, sharing caches and memory, so times are not comparable with those of jobs "
            "that ran alone. Ratios within a job (speedups) suffer less; tokens per step do not suffer."
        )
    for key, what in (("threads", "threads"), ("host", "machines")):
        values = sorted({str(about[key]) for about in attempts if about.get(key) is not None})
        if len(values) > 1:
            notes.append(
                f"Jobs ran with different {what} ({', '.join(values)}): their times are not comparable."
            )
    versions = {json.dumps(about.get("versions"), sort_keys=True) for about in attempts}
    if len(versions) > 1:
        notes.append("Jobs ran with different versions of code or packages: see their attempts.")
    return notes


def _write(folder: Path, manifest: Mapping[str, Any], collected: Collected) -> None:
    about = {SCHEMA_KEY: str(manifest["schema_version"])}
    for name, frame in (("prompts", collected.prompts), ("summary", collected.summary)):
        write_whole(folder / f"{name}.parquet", as_parquet(frame, **about))
    data = {
        "schema_version": manifest["schema_version"],
        "name": manifest["name"],
        "grid": manifest["grid"],
        **plain_data(collected.data(folder)),
    }
    write_whole(folder / "summary.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
