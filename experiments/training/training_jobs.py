"""The drafts of a training as jobs, in processes of their own or on SLURM, by the executors of sweeps."""

import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from treespec.experiments.errors import TrainingError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.sweep.attempts import Task
from treespec.experiments.sweep.executors import Executor
from treespec.experiments.sweep.job import TRAINING
from treespec.experiments.training.settings import TrainingConfig, load_training
from treespec.experiments.training.training_run import TrainingRun, claim
from treespec.files import write_whole

__all__ = ["train_as_jobs", "train_one"]

POLL_S = 0.5


def train_as_jobs(
    config: TrainingConfig, out: Path, make: Callable[[Path], Executor], reporter: Reporter
) -> None:
    """Train every draft that is not finished, each as a job; returns when all have ended.

    Args:
        config: what to train.
        out: the folder of the training; every job must see it.
        make: makes the executor, given a folder for logs.
        reporter: shows which jobs run.

    Raises:
        TrainingError: if a job fails, naming its log, after the others have ended; or if the folder holds a
            training of another config.
    """
    claim(config, out)
    jobs = out / "jobs"
    tasks, failed = deque[Task](), list[str]()
    for draft in config.drafts:
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


def train_one(folder: Path) -> None:
    """Train the draft that a job's folder names."""
    job = json.loads((folder / TRAINING).read_text(encoding="utf-8"))
    out = Path(job["out"])
    TrainingRun(load_training(out / "config.yaml"), out, Reporter(None)).run(job["draft"])
