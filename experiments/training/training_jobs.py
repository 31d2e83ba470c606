"""The drafts of a training as jobs, in processes of their own or on SLURM, by the executors of sweeps."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.errors import TrainingError
from treespec.experiments.run.models import calm_transformers
from treespec.experiments.run.progress import Reporter
from treespec.experiments.sweep.attempts import Task
from treespec.experiments.sweep.executors import Executor
from treespec.experiments.sweep.job import allotted_threads, end_with_parent
from treespec.experiments.training.settings import TrainingConfig, load_training
from treespec.experiments.training.training_folder import claim
from treespec.experiments.training.training_run import TrainingRun
from treespec.files import write_whole

MODULE = "treespec.experiments.training.training_jobs"
"""What a local process runs."""

TRAINING = "training.json"
"""The file of a job's folder that names its draft."""

POLL_S = 0.5


def train_as_jobs(
    config: TrainingConfig,
    out: Path,
    make: Callable[[Path], Executor],
    reporter: Reporter,
    only: str | None = None,
) -> None:
    """Train every draft that is not finished, each as a job; returns when all have ended.

    Args:
        config: what to train.
        out: the folder of the training; every job must see it.
        make: makes the executor, given a folder for logs.
        reporter: shows which jobs run.
        only: name of the one draft to train, see `TrainingConfig.named`.

    Raises:
        TrainingError: if a job fails, naming its log, after the others have ended; or if the folder holds a
            training of another config.
    """
    claim(config, out)
    jobs = out / "jobs"
    tasks, failed = deque[Task](), list[str]()
    for draft in config.named(only):
        folder = jobs / draft.label
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            folder / TRAINING, json.dumps({"out": str(out.resolve()), "draft": draft.label})
        )
        tasks.append(Task(draft.label, folder, 1, jobs / f"{draft.label}.log"))
    runner, count = make(jobs), len(tasks)
    try:
        with reporter.task(f"training {count} drafts") as say:
            ended = 0
            while ended < count:
                runner.start(
                    [tasks.popleft() for _ in range(min(max(runner.room(), 0), len(tasks)))]
                )
                ends, running = runner.poll()
                failed += [f"{end.task.name}: {end.error}" for end in ends if end.error]
                ended += len(ends)
                say(f"trained {ended} of {count}; training: {', '.join(sorted(running)) or '-'}")
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        reporter.note(runner.stop())
        raise
    if failed:
        raise TrainingError("; ".join(failed))


def run_job(
    job: str,
    attempt: int,
    about: Mapping[str, Any] | None = None,
    *,
    allow_versions: bool = False,
) -> str:
    """Train the draft that a job's folder names; the arguments are those of `sweep.job.run_job`."""
    del attempt, about, allow_versions
    asked = json.loads((Path(job) / TRAINING).read_text(encoding="utf-8"))
    out = Path(asked["out"])
    threads = allotted_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    TrainingRun(load_training(out / "config.yaml"), out, Reporter(Console())).run(asked["draft"])
    return str(out / asked["draft"])


def main(
    folder: str,
    attempt: int = 1,
    threads: int | None = None,
    workers: int = 1,
    with_parent: bool = False,
) -> None:
    """Run one job as a local worker; with --with-parent, end when the parent process has ended."""
    del workers
    if with_parent:
        end_with_parent()
    if threads is not None:
        torch.set_num_threads(threads)
    calm_transformers()
    try:
        run_job(folder, attempt)
    except TreespecError as error:
        print(f"failed: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
