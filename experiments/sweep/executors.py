"""Where the jobs of a sweep run: in this process, in processes of this machine, or on SLURM (`slurm`).

The local executor of submitit starts all jobs at once. A sweep must limit the number of workers, or its
times mean nothing; so local workers are processes of our own, one per job.
"""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import treespec
from treespec.experiments.records.machine_load import allowed_cores
from treespec.experiments.sweep.attempts import Ended, Task
from treespec.experiments.sweep.job import JobFailed, at_most_allowed, run_job

CODE = os.fspath(Path(treespec.__path__[0]).parent)
"""Folder of the package that this process imports; workers must import the same one."""

LOG_TAIL = 400
"""Characters of a worker's output to quote if the worker reports nothing else."""


class Executor(ABC):
    """Runs tasks. A task writes its results to its job's folder; the executor only reports its end."""

    name: str
    workers: int = 1
    """Number of jobs that may run in parallel; 0 for no limit."""
    queues: bool = False
    """Whether started tasks may wait in a queue, so that only `poll` tells which jobs run."""
    threads: int | None = None
    """Threads of torch in each job; None for torch's default or SLURM's allotment."""

    @abstractmethod
    def room(self) -> int:
        """Number of tasks that can be started now."""

    @abstractmethod
    def start(self, tasks: Sequence[Task]) -> None:
        """Start these tasks, at most `room()` of them."""

    @abstractmethod
    def poll(self) -> tuple[list[Ended], set[str]]:
        """The tasks that have ended since the last call, and the names of the jobs running now."""

    @abstractmethod
    def stop(self) -> str:
        """Stop what can be stopped, after Ctrl-C or an error; returns what became of the jobs, in words."""


class InProcess(Executor):
    """Runs one job after the other, in this process."""

    name = "process"

    def __init__(self, *, allow_versions: bool = False) -> None:
        self._allow_versions = allow_versions
        self._ended: list[Ended] = []

    def room(self) -> int:
        """One, unless `poll` has not yet reported the last task."""
        return 1 - len(self._ended)

    def start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            error = None
            try:
                run_job(
                    os.fspath(task.folder),
                    task.attempt,
                    {"executor": self.name, "workers": 1},
                    allow_versions=self._allow_versions,
                )
            except JobFailed as problem:
                error = str(problem)
            self._ended.append(Ended(task, error))

    def poll(self) -> tuple[list[Ended], set[str]]:
        ended, self._ended = self._ended, []
        return ended, set()

    def stop(self) -> str:
        """Do nothing: the interrupt itself has stopped the job."""
        return "the job in progress was stopped"


class LocalWorkers(Executor):
    """Runs each job in a process of its own, a limited number at a time.

    Args:
        threads: of torch in each process; `threads_for(workers)` by default.
        module: what each process runs, with the options of `sweep.job`.
    """

    name = "local"

    def __init__(
        self,
        workers: int,
        *,
        threads: int | None = None,
        allow_versions: bool = False,
        module: str = "treespec.experiments.sweep.job",
    ) -> None:
        self.workers, self.threads = workers, threads or threads_for(workers)
        self._allow_versions, self._module = allow_versions, module
        self._running: dict[str, tuple[Task, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        return self.workers - len(self._running)

    def start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            with task.log.open("ab") as log:
                # Standard input stays open as long as this process lives (`--with-parent`). In a session of
                # its own the worker does not receive Ctrl-C; this process stops it.
                process = subprocess.Popen(
                    self.command(task),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(self.threads or 1),
                    start_new_session=True,
                )
            self._running[task.name] = task, process

    def command(self, task: Task) -> list[str]:
        """The command line of a worker. -P keeps Python from importing a local folder `experiments`."""
        return [
            *(sys.executable, "-P", "-m", self._module),
            os.fspath(task.folder),
            *("--attempt", str(task.attempt), "--threads", str(self.threads)),
            *("--workers", str(self.workers), "--with-parent"),
            *["--allow-versions"] * self._allow_versions,
        ]

    def poll(self) -> tuple[list[Ended], set[str]]:
        ended = []
        for name, (task, process) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                process.communicate()  # closes the pipe to it
                ended.append(Ended(task, None if code == 0 else _reason(code, task.log)))
        return ended, set(self._running)

    def stop(self) -> str:
        """Kill the workers. Finished prompts are on disk; the rest is decoded again later."""
        stopped = len(self._running)
        for _, process in self._running.values():
            process.kill()
        for _, process in self._running.values():
            process.communicate()  # closes the pipe to it, and waits for its end
        self._running.clear()
        return f"{stopped} workers were stopped"


def threads_for(workers: int) -> int:
    """Threads of torch per worker: an equal share of the cores, at most what the user allows."""
    return at_most_allowed(max(1, len(allowed_cores()) // workers))


def _environment(threads: int) -> dict[str, str]:
    """This process's environment, with the same code on the path and the number of threads set."""
    path = os.pathsep.join(filter(None, (CODE, os.environ.get("PYTHONPATH"))))
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**os.environ, **counts, "PYTHONPATH": path}


def _reason(code: int, log: Path) -> str:
    """Why a worker failed, for workers that did not record it themselves."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"the worker was killed by signal {-code} ({name}); see {log}"
    return f"the worker ended with exit code {code}: {tail_of(log)}; see {log}"


def tail_of(log: Path) -> str:
    """The end of a worker's output, in one line; empty if it cannot be read."""
    with suppress(OSError):
        return " ".join(log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].split())
    return ""
