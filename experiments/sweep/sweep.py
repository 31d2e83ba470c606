"""Run the missing jobs of a sweep by an executor. A killed sweep resumes where it stopped."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from treespec.experiments.config.places import inputs_of, require_apart
from treespec.experiments.errors import SweepError
from treespec.experiments.run.fastest_settings import forget
from treespec.experiments.run.models import load_models
from treespec.experiments.run.passes import choose_ahead
from treespec.experiments.run.progress import Reporter
from treespec.experiments.sweep.attempts import Attempt, Ended, Task, outcome_of, write_attempt
from treespec.experiments.sweep.collect import Collected
from treespec.experiments.sweep.executors import Executor
from treespec.experiments.sweep.grid import Grid
from treespec.experiments.sweep.sweep_folder import SweepFolder
from treespec.experiments.sweep.sweep_progress import Board
from treespec.experiments.sweep.sweep_readiness import ready_jobs, require_models

POLL_S = 0.5
"""Seconds between two polls of the workers: rare enough not to disturb their measurements."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a sweep; the message says what became of its jobs."""


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep."""

    folder: Path
    already_finished: bool
    collected: Collected


def run_sweep(
    grid: Grid,
    folder: Path,
    executor: Callable[[Path], Executor],
    *,
    retries: int = 1,
    fresh: bool = False,
    allow_versions: bool = False,
    console: Console | None = None,
) -> SweepResult:
    """Run the unfinished jobs of a grid, and collect the results of all jobs.

    `executor` makes the executor, given the folder of the sweep's logs. `retries` is how often this command
    tries a failing job again.

    Raises:
        ConfigError, PromptError, LoadError, SweepError: errors that a user can fix; raised before any job
            starts, except if the executor refuses its jobs.
        Interrupted: on Ctrl-C, after the executor has been stopped.
    """
    keys = {path: key for job in grid.jobs for key, path in inputs_of(job.config)}
    require_apart(folder, [("the config", grid.path), *((key, path) for path, key in keys.items())])
    starts = ready_jobs(grid)
    with SweepFolder(folder) as records:
        runner = executor(records.logs)
        remaining = (
            grid.jobs
            if fresh
            else [job for job in grid.jobs if not outcome_of(records.job(job.name)).finished]
        )
        require_models(grid, remaining, starts, Reporter(console))
        if runner.threads is not None:  # local workers, which keep the machine busy once they run
            threads = torch.get_num_threads()
            torch.set_num_threads(runner.threads)
            for job in remaining:
                experiment = starts[job.name].experiment
                if fresh:
                    forget(experiment.config.models, experiment.methods)
                choose_ahead(experiment, load_models, Reporter(console))
            torch.set_num_threads(threads)
        if fresh:  # after all checks, so that a typo does not cost the earlier sweep
            records.clear()
        session = {
            "executor": runner.name,
            "workers": runner.workers or None,
            "threads": runner.threads,
            "retries": retries,
        }
        manifest = records.start(grid, session, allow_versions=allow_versions)
        board = Board([job.name for job in grid.jobs], console)
        todo = deque(_unfinished(records, board))
        already_finished = not todo
        if todo and len(todo) < len(grid.jobs):
            board.note(
                f"{len(grid.jobs) - len(todo)} of {len(grid.jobs)} jobs are already finished"
            )
        try:
            _work(records, runner, board, todo, retries)
        except KeyboardInterrupt:
            raise Interrupted(runner.stop()) from None
        except BaseException:
            runner.stop()
            raise
        if not already_finished:
            board.note("collecting the results")
        collected = records.collected(manifest)
        records.finish(manifest)
        return SweepResult(folder, already_finished, collected)


def _unfinished(records: SweepFolder, board: Board) -> list[Task]:
    """The next attempt at every unfinished job."""
    tasks = []
    for name in board.states:
        outcome = outcome_of(records.job(name))
        if outcome.finished:
            board.states[name] = "finished"
        else:
            latest = max((attempt.number for attempt in outcome.attempts), default=0)
            tasks.append(records.task(name, latest + 1))
    return tasks


def _work(
    records: SweepFolder, runner: Executor, board: Board, todo: deque[Task], retries: int
) -> None:
    """Keep the executor busy until every job has ended."""
    failures: dict[str, int] = {}
    open_tasks = len(todo)
    while open_tasks:
        room = min(runner.room(), len(todo))
        if room:
            batch = [todo.popleft() for _ in range(room)]
            if not runner.queues:
                for task in batch:
                    board.set(task.name, "running")
            runner.start(batch)
        ended, running = runner.poll()
        for name in running:
            board.set(name, "running")
        for end in ended:
            retry = _settle(records, board, end, failures, retries)
            if retry is None:
                open_tasks -= 1
            else:
                todo.append(retry)
        if not ended:
            time.sleep(POLL_S)


def _settle(
    records: SweepFolder, board: Board, end: Ended, failures: dict[str, int], retries: int
) -> Task | None:
    """Record how an attempt ended; returns the next attempt, or None if the job has ended."""
    name, number = end.task.name, end.task.attempt
    job = records.job(name)
    outcome = outcome_of(job)
    if all(attempt.number != number for attempt in outcome.attempts):
        error = None if outcome.finished else end.error or "it ended without giving a reason"
        write_attempt(job, Attempt(number, error))
        outcome = outcome_of(job)
    if outcome.finished:
        board.set(name, "finished")
        return None
    failures[name] = failures.get(name, 0) + 1
    reason = outcome.error or "it ended without giving a reason"
    if failures[name] > retries:
        board.set(name, "failed", reason)
        return None
    board.set(name, "waiting", f"will be retried: {reason}")
    return records.task(name, number + 1)


def require_workers(executor: str, workers: int | None) -> None:
    """Reject a number of workers that the executor cannot use."""
    if workers is not None and workers < 1:
        raise SweepError(f"--workers {workers}: must be at least 1")
    if workers is not None and workers > 1 and executor == "process":
        raise SweepError(
            f"--workers {workers} needs --executor local or slurm: 'process' runs one job after the other"
        )
