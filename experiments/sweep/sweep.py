"""Run the missing jobs of a sweep by an executor. A killed sweep resumes where it stopped."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from treespec.errors import LoadError, TokenizerMismatch, Unavailable, UnsupportedModel, visible
from treespec.experiments.config.places import inputs_of, require_apart
from treespec.experiments.errors import ConfigError, PromptError, SweepError
from treespec.experiments.run.datastores import build_missing, missing_datastores
from treespec.experiments.run.fastest_settings import forget
from treespec.experiments.run.inputs import read_by, require_fits, require_sources
from treespec.experiments.run.models import load_models, outline_own_drafts, require_quantised
from treespec.experiments.run.passes import choose_ahead
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.session import Ready, ready
from treespec.experiments.run.vocabularies import require_vocabularies
from treespec.experiments.sweep.attempts import Attempt, Ended, Task, outcome_of, write_attempt
from treespec.experiments.sweep.collect import Collected
from treespec.experiments.sweep.executors import Executor
from treespec.experiments.sweep.grid import Grid, Job
from treespec.experiments.sweep.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from treespec.models.outline import PairOutline


ENDED = ("finished", "failed")

POLL_S = 0.5
"""Seconds between two polls of the workers: rare enough not to disturb their measurements."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a sweep; the message says what became of its jobs."""


@dataclass(frozen=True)
class SweepResult:
    folder: Path
    already_finished: bool
    collected: Collected


class Board:
    """The states of all jobs, by name: `waiting`, `running`, `finished` or `failed`."""

    def __init__(self, jobs: Iterable[str], console: Console | None) -> None:
        self.states = dict.fromkeys(jobs, "waiting")
        self._console = console

    def set(self, name: str, state: str, note: str = "") -> None:
        """Set the state of a job; a change is printed, with the number of jobs that have ended."""
        if self.states[name] == state and not note:
            return
        self.states[name] = state
        ended, total = sum(s in ENDED for s in self.states.values()), str(len(self.states))
        self.note(f"[{ended:{len(total)}}/{total}]  {name}: {state}{f': {note}' if note else ''}")

    def note(self, text: str) -> None:
        if self._console is not None:
            self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


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
            # Most jobs differ in seeds, prompts or samplings only: then one choice is made for all.
            choices = {
                repr((one.config.models, [method.config for method in one.methods])): one
                for one in (starts[job.name].experiment for job in remaining)
            }
            for experiment in choices.values():
                if fresh:
                    forget(experiment.config.models, experiment.methods)
                choose_ahead(experiment, load_models, Reporter(console), fresh=fresh)
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


def ready_jobs(grid: Grid) -> dict[str, Ready]:
    """Prepare every job, by name, as far as possible without models."""
    starts = {}
    for job in grid.jobs:
        if job.config.models.tensor_parallel:
            raise SweepError(
                f"{grid.path}: models.tensor_parallel in the job {job.name}: a sweep does not start "
                "torchrun; remove it, or run such experiments one by one (torchrun ... treespec run)"
            )
        with _naming(grid, job):
            starts[job.name] = ready(job.config, lambda text: None)
    return starts


def require_models(
    grid: Grid, jobs: Iterable[Job], starts: Mapping[str, Ready], reporter: Reporter
) -> None:
    """Reject models that cannot be loaded and texts that exceed their context, without reading weights.

    Quantisations that this machine lacks, or that are not for the models, are rejected too.

    Datastores that jobs may build are built here, once for all jobs.

    The device is not checked here, because jobs may run on another machine.
    """
    from treespec.models.outline import outline_pair

    outlines: dict[tuple[str, str | None, bool], PairOutline] = {}
    encoded: dict[tuple[str, str | None, bool, str], list[Prompt]] = {}
    quantised: set[str] = set()
    for job in jobs:
        config, start = job.config, starts[job.name]
        other = config.models.other_tokenizer
        pair = config.models.target, config.models.draft, other
        texts = [*start.measured, *start.spare]
        encoding = *pair, f"{len(texts)} of {config.prompts.model_dump_json()}"
        with _naming(grid, job):
            if pair not in outlines:
                outlines[pair] = outline_pair(*pair[:2], other_tokenizer=other)
            if encoding not in encoded:
                encoded[encoding] = read_by(outlines[pair], texts, config.prompts)
            methods = start.experiment.methods
            outlines[pair] = outline_own_drafts(outlines[pair], methods, other_tokenizer=other)
            wanted = repr((config.models, [method.own_models for method in methods]))
            if wanted not in quantised:
                require_quantised(config.models, methods)
                quantised.add(wanted)
            require_vocabularies(outlines[pair], methods)
            build_missing(missing_datastores(methods), outlines[pair], reporter)
            prompts, cut = encoded[encoding], len(start.measured)
            require_sources(outlines[pair], prompts)  # again: the drafts of this job read them too
            require_fits(start.experiment, outlines[pair], prompts[:cut], prompts[cut:])


@contextmanager
def _naming(grid: Grid, job: Job) -> Iterator[None]:
    """Add the file and the job to the message of an error."""
    try:
        yield
    except (
        ConfigError, PromptError, LoadError, TokenizerMismatch, Unavailable, UnsupportedModel,
    ) as error:  # fmt: skip
        error.args = (f"{grid.path}: {error} (in the job {job.name})",)
        raise
