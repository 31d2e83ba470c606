"""Run one job of a sweep from the files in its folder; every executor uses the same function.

python -m treespec.experiments.sweep.job sweeps/NAME/jobs/JOB --attempt 1
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treespec.errors import in_words
from treespec.experiments.errors import SweepError, VersionsDiffer
from treespec.experiments.sweep.attempts import Attempt, write_attempt

if TYPE_CHECKING:
    from treespec.experiments.config.schema import ModelsConfig
    from treespec.models.load import Pair

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class JobFailed(RuntimeError):
    """A job did not finish; the file of its attempt says why."""


def run_job(
    job: str,
    attempt: int,
    about: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    allow_versions: bool = False,
    load: "Callable[[ModelsConfig], Pair] | None" = None,
) -> str:
    """Run what is missing of the job in this folder, and record how the attempt ended.

    `about` is recorded with it. Without `threads`, torch has what SLURM allots, or its default.
    Returns the run's folder.
    """
    from treespec.experiments.records.manifest import now

    folder = Path(job)
    record = {**(about or {}), "host": socket.gethostname(), "pid": os.getpid(), "started": now()}
    cause = None
    try:
        import torch

        threads = threads or allotted_threads()
        if threads is not None:
            torch.set_num_threads(threads)
        record |= {
            "threads": torch.get_num_threads(),
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
        }
        error = _run(folder, record, allow_versions, load)
    except (Exception, SystemExit) as problem:
        cause, error = problem, in_words(problem, "the job")
    record["ended"] = now()
    write_attempt(folder, Attempt(attempt, error, record))
    if error is not None:
        raise JobFailed(error) from cause
    return str(folder / "run")


def _run(
    folder: Path,
    record: dict[str, Any],
    allow_versions: bool,
    load: "Callable[[ModelsConfig], Pair] | None",
) -> str | None:
    """Run the job, and add the versions here to `record`; returns the first error of a method, if any."""
    from treespec import plugin_files
    from treespec.experiments.config.file import load_config
    from treespec.experiments.config.plugged import copies, require_same_plugins
    from treespec.experiments.measure.searched_run import run
    from treespec.experiments.records.manifest import config_hash
    from treespec.experiments.run.models import load_models
    from treespec.experiments.sweep.sweep_folder import (
        different_versions,
        read_manifest,
        versions_here,
    )

    planned = read_manifest(folder.parents[1])
    record["versions"] = versions_here()
    changed = different_versions(planned["versions"], record["versions"])
    if changed and not allow_versions:
        raise VersionsDiffer(
            f"this worker's versions are not those of the planned sweep ({'; '.join(changed)}); use the "
            "same environment everywhere, or --allow-versions"
        )
    plugin_files.load(copies(folder.parents[1] / "sweep.json"))
    require_same_plugins(folder.parents[1], planned, SweepError)
    config = load_config(folder / "config.yaml")
    hashes = {entry["name"]: entry["config_hash"] for entry in planned["jobs"]}
    if hashes.get(folder.name) != config_hash(config):
        raise SweepError(
            f"{folder / 'config.yaml'} has been changed since the sweep was planned; change the sweep's "
            "config instead, and choose another folder"
        )
    result = run(config, folder=folder / "run", retry=True, load=load or load_models)
    if not result.failures:
        return None
    row = result.failures[0]
    return (
        f"{len(result.failures)} of its rows hold an error, the first for prompt {row.prompt}, "
        f"{row.sampling}, {row.method}: {row.error}"
    )


def allotted_threads() -> int | None:
    """Number of cores that SLURM allots to this process, at most OMP_NUM_THREADS; None outside SLURM."""
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_JOB_ID" not in os.environ or not given.isdigit():
        return None
    return at_most_allowed(int(given))


def at_most_allowed(threads: int) -> int:
    """This number of threads, or OMP_NUM_THREADS if that is smaller."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(allowed)) if allowed.isdigit() and int(allowed) else threads


@app.command()
def main(
    folder: Annotated[str, typer.Argument(help="jobs/<name> in a sweep's folder")],
    attempt: Annotated[int, typer.Option("--attempt")] = 1,
    threads: Annotated[int | None, typer.Option("--threads")] = None,
    workers: Annotated[int, typer.Option("--workers", help="number of jobs in parallel")] = 1,
    allow_versions: Annotated[bool, typer.Option("--allow-versions")] = False,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="end when standard input is closed")
    ] = False,
) -> None:
    """Run one job as a local worker; with --with-parent, end when the parent process has ended."""
    if with_parent:
        end_with_parent()
    from treespec.experiments.run.models import calm_transformers

    calm_transformers()
    try:
        run_job(
            folder,
            attempt,
            {"executor": "local", "workers": workers},
            threads=threads,
            allow_versions=allow_versions,
        )
    except JobFailed as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)


def end_with_parent() -> None:
    """End this process when the other end of standard input closes; files are written whole."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1024):  # not sys.stdin, whose lock would be held when the interpreter exits
        pass
    os._exit(1)


if __name__ == "__main__":
    app()
