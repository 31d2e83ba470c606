"""Run what is missing of a sweep, by an executor, into its folder. A killed sweep goes on where it was."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from treespec.experiments.config.places import inputs_of, require_apart
from treespec.experiments.errors import SweepError
from treespec.experiments.run.readiness import Ready
from treespec.experiments.sweep.attempts import Attempt, Ended, Task, outcome_of, write_attempt
from treespec.experiments.sweep.collect import Collected, collect
from treespec.experiments.sweep.executors import Executor
from treespec.experiments.sweep.folder import SweepFolder
from treespec.experiments.sweep.grid import Grid
from treespec.experiments.sweep.progress import Board, JobView, prompts_done
from treespec.experiments.sweep.readiness import ready_jobs, require_models

__all__ = ["Interrupted", "SweepResult", "require_workers", "run_sweep"]

MOST_WORKERS = 1024

POLL_S = 0.5
"""Seconds between two looks at the workers: rare enough not to disturb what they measure."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a sweep; the text says what became of its jobs."""


@dataclass(frozen=True)
class SweepResult:
    """Where the sweep is, and what it found.

    Args:
        folder: of the sweep.
        already_finished: no job was left to run.
        collected: the one result.
    """

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
    """Run the jobs of a grid that are not finished, and collect all that are.

    Args:
        grid: what to run.
        folder: of the sweep.
        executor: makes what runs the jobs, given the folder of the sweep's logs.
        retries: how often a job that fails is tried again before it counts as failed. Each command starts
            counting anew.
        fresh: delete an earlier sweep there first.
        allow_versions: continue a sweep of other code or packages.
        console: where progress is shown; nowhere by default.

    Raises:
        ConfigError, PromptError, LoadError, SweepError: what a user can mend; raised before any job starts,
            but for an executor that refuses its jobs.
        Interrupted: on Ctrl-C, when the executor has been stopped.
    """
    read = {place: what for job in grid.jobs for what, place in inputs_of(job.config)}
    require_apart(folder, [("the config", grid.path), *((w, p) for p, w in read.items())])
    starts = ready_jobs(grid)
    with SweepFolder(folder) as records:
        records.require_free(grid)
        runner = executor(records.logs)
        left = (
            grid.jobs
            if fresh
            else [job for job in grid.jobs if not outcome_of(records.job(job.name)).finished]
        )
        require_models(grid, left, starts)
        if fresh:  # only now: until here a typo would have cost the earlier sweep
            records.clear()
        session = {
            "executor": runner.name,
            "workers": runner.workers or None,
            "threads": runner.threads,
            "retries": retries,
        }
        manifest = records.start(grid, session, allow_versions=allow_versions)
        board = Board(_views(grid, starts, folder), console)
        todo = deque(_unfinished(records, board))
        already = not todo
        if todo and len(todo) < len(grid.jobs):
            board.note(
                f"{len(grid.jobs) - len(todo)} of {len(grid.jobs)} jobs are finished already"
            )
        try:
            with board.shown():
                _work(records, runner, board, todo, retries)
        except KeyboardInterrupt:
            raise Interrupted(runner.stop()) from None
        except BaseException:
            runner.stop()
            raise
        if console is not None and not already:
            board.note("collecting the results", live=False)
        collected = collect(folder, manifest, records.keep)
        records.finish(manifest)
        return SweepResult(folder, already, collected)


def _views(grid: Grid, starts: Mapping[str, Ready], folder: Path) -> dict[str, JobView]:
    """What is shown of each job."""
    return {
        job.name: JobView(
            folder / "jobs" / job.name,
            len(starts[job.name].measured) * job.config.repeats,
            len(job.config.samplings),
        )
        for job in grid.jobs
    }


def _unfinished(records: SweepFolder, board: Board) -> list[Task]:
    """The next attempt at every job that is not finished."""
    tasks = []
    for name, view in board.jobs.items():
        outcome = outcome_of(records.job(name))
        if outcome.finished:
            view.state, view.done = "finished", view.total
        else:
            number = 1 + max((attempt.number for attempt in outcome.attempts), default=0)
            tasks.append(records.task(name, number))
    return tasks


def _work(
    records: SweepFolder, runner: Executor, board: Board, todo: deque[Task], retries: int
) -> None:
    """Keep the executor busy until every job has come to its end."""
    failures: dict[str, int] = {}
    open_tasks = len(todo)
    while open_tasks:
        room = min(runner.room(), len(todo))
        if room:
            batch = [todo.popleft() for _ in range(room)]
            if not runner.queues:
                for task in batch:
                    board.set(task.name, "running")
            try:
                runner.start(batch)
            finally:
                records.claim_logs(runner.made())
            records.settle()
        ended, running = runner.poll()
        for name in running:
            board.set(name, "running")
        for end in ended:
            again = _settle(records, board, end, failures, retries)
            if again is None:
                open_tasks -= 1
            else:
                todo.append(again)
        if not ended:
            time.sleep(POLL_S)


def _settle(
    records: SweepFolder, board: Board, end: Ended, failures: dict[str, int], retries: int
) -> Task | None:
    """Note how an attempt ended; the next one, if there is to be one."""
    name, number = end.task.name, end.task.attempt
    job = records.job(name)
    outcome = outcome_of(job)
    told = any(attempt.number == number for attempt in outcome.attempts)
    if not told:
        error = None if outcome.finished else end.error or "it ended without a word"
        write_attempt(job, Attempt(number, error))
        outcome = outcome_of(job)
    view = board.jobs[name]
    view.done = view.total if outcome.finished else prompts_done(view)
    if outcome.finished:
        board.set(name, "finished")
        return None
    failures[name] = failures.get(name, 0) + 1
    why = outcome.error or "it ended without a word"
    if failures[name] > retries:
        board.set(name, "failed", why)
        return None
    board.set(name, "waiting", f"to be tried again: {why}")
    return records.task(name, number + 1)


def require_workers(executor: str, workers: int | None) -> None:
    """Refuse a number of workers that an executor cannot use.

    Raises:
        SweepError: saying what can.
    """
    if workers is not None and workers < 1:
        raise SweepError(f"--workers {workers}: must be at least 1")
    if workers is not None and workers > MOST_WORKERS:
        raise SweepError(f"--workers {workers}: must be at most {MOST_WORKERS:,}")
    if workers is not None and workers > 1 and executor == "process":
        raise SweepError(
            f"--workers {workers} needs --executor local or slurm: 'process' runs one job after the other"
        )
