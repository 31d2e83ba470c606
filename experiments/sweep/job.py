"""One job of a sweep, run from the files in its folder: the same function for every executor.

python -m treespec.experiments.sweep.job sweeps/NAME/jobs/JOB --attempt 1
"""

import argparse
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.errors import in_words
from treespec.experiments.errors import SweepError, VersionsDiffer
from treespec.experiments.sweep.attempts import Attempt, write_attempt

if TYPE_CHECKING:
    from treespec.experiments.config.schema import ModelsConfig
    from treespec.models.load import Pair

__all__ = ["JobFailed", "allotted_threads", "at_most_allowed", "main", "run_job", "threads_here"]


class JobFailed(RuntimeError):
    """A job that did not finish; its attempt says why."""


def run_job(
    job: str,
    attempt: int,
    about: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    allow_versions: bool = False,
    load: "Callable[[ModelsConfig], Pair] | None" = None,
) -> str:
    """Run what is missing of a job, and write down how that ended.

    Args:
        job: its folder, `jobs/<name>` in a sweep's folder. A path, so that it can be sent to any machine.
        attempt: its number.
        about: what the sweep wants noted: the executor, how many jobs run side by side.
        threads: of torch; None for what SLURM allots, or outside of it for what torch takes by itself.
        allow_versions: run it with other code or packages than the sweep was planned with.
        load: gives the models; those that the config names by default.

    Returns:
        The folder of the run.

    Raises:
        JobFailed: with the reason that stands in the attempt's file.
    """
    from treespec.experiments.records.manifest import now

    folder = Path(job)
    noted = {**(about or {}), "host": socket.gethostname(), "pid": os.getpid(), "started": now()}
    cause = None
    try:
        threads = threads or allotted_threads()
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        noted |= {"threads": threads_here(), "slurm_job": os.environ.get("SLURM_JOB_ID")}
        error = _run(folder, noted, allow_versions, load)
    except Exception as problem:
        cause, error = problem, in_words(problem, "the job")
    noted["ended"] = now()
    write_attempt(folder, Attempt(attempt, error, noted))
    if error is not None:
        raise JobFailed(error) from cause
    return str(folder / "run")


def _run(
    folder: Path,
    noted: dict[str, Any],
    allow_versions: bool,
    load: "Callable[[ModelsConfig], Pair] | None",
) -> str | None:
    """Run the job; the first error of a method, if any failed on any prompt."""
    from treespec import plugin_files
    from treespec.experiments.config.file import load_config
    from treespec.experiments.config.plugged import copies, require_same_plugins
    from treespec.experiments.records.manifest import config_hash
    from treespec.experiments.run.models import load_models
    from treespec.experiments.search_then_run.run import run
    from treespec.experiments.sweep.folder import different_versions, read_manifest, versions_here

    planned = read_manifest(folder.parents[1])
    noted["versions"] = versions_here()
    changed = different_versions(planned["versions"], noted["versions"])
    if changed and not allow_versions:
        raise VersionsDiffer(
            f"this worker is not what the sweep was planned with ({'; '.join(changed)}); use the "
            "same environment everywhere, or --allow-versions"
        )
    plugin_files.load(copies(folder.parents[1] / "sweep.json"))
    require_same_plugins(folder.parents[1], planned, SweepError)
    config = load_config(folder / "config.yaml")
    hashes = {entry["name"]: entry["config_hash"] for entry in planned["jobs"]}
    if hashes.get(folder.name) != config_hash(config):
        raise SweepError(
            f"{folder / 'config.yaml'} is not the config that the sweep planned: it was changed since; "
            "change the sweep's config instead, and give another folder"
        )
    result = run(config, folder=folder / "run", retry=True, load=load or load_models)
    if not result.failures:
        return None
    row = result.failures[0]
    return (
        f"{len(result.failures)} of its rows hold an error, first prompt {row.prompt}, {row.sampling}, "
        f"{row.method}: {row.error}"
    )


def threads_here() -> int:
    """How many threads torch computes with in this process."""
    import torch

    return torch.get_num_threads()


def allotted_threads() -> int | None:
    """The cores that SLURM gives this process, at most OMP_NUM_THREADS; None outside of SLURM."""
    given = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_JOB_ID" not in os.environ or not given.isdigit():
        return None
    return at_most_allowed(int(given))


def at_most_allowed(threads: int) -> int:
    """So many threads, but no more than OMP_NUM_THREADS allows."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(allowed)) if allowed.isdigit() and int(allowed) else threads


def main(arguments: list[str] | None = None) -> None:
    """A local worker: one job, then the end. It ends too when its parent is gone."""
    parser = argparse.ArgumentParser(prog="python -m treespec.experiments.sweep.job")
    parser.add_argument("folder", help="jobs/<name> in a sweep's folder")
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--workers", type=int, default=1, help="jobs that run side by side")
    parser.add_argument("--allow-versions", action="store_true")
    parser.add_argument(
        "--with-parent", action="store_true", help="end when standard input is closed"
    )
    given = parser.parse_args(arguments)
    if given.with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    from treespec.experiments.run.models import calm_transformers

    calm_transformers()
    try:
        run_job(
            given.folder,
            given.attempt,
            {"executor": "local", "workers": given.workers},
            threads=given.threads,
            allow_versions=given.allow_versions,
        )
    except JobFailed as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)


def _end_with_parent() -> None:
    """End at once when the other end of standard input is gone: no row is ever half written."""
    while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
