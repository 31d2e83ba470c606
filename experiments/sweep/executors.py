"""Where the jobs of a sweep run: in this process, in processes of this machine, or on SLURM (`slurm`).

submitit has a local executor too, but it starts everything that it is given at once; a sweep must keep to a
number of workers, or the times mean nothing. So local workers are processes of our own, one for each job.
"""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

import treespec
from treespec.experiments.sweep.attempts import Ended, Task
from treespec.experiments.sweep.job import JobFailed, at_most_allowed, run_job

__all__ = ["Executor", "InProcess", "LocalWorkers", "threads_for"]

LOG_TAIL = 400
"""Characters of a worker's output that are quoted when it says nothing else."""


class Executor(ABC):
    """Runs tasks. Each of them writes into its job's folder; what is returned is only whether it ended."""

    name: str
    workers: int = 1
    """How many jobs may run side by side; 0 for as many as it likes."""
    queues: bool = False
    """Whether what it is given waits in a queue of its own, so that `poll` alone says what runs."""
    threads: int | None = None
    """Of torch in each job; None where jobs take what they find."""

    @abstractmethod
    def room(self) -> int:
        """How many tasks it takes now."""

    @abstractmethod
    def start(self, tasks: Sequence[Task]) -> None:
        """Begin these tasks, no more than there is room for."""

    @abstractmethod
    def poll(self) -> tuple[list[Ended], set[str]]:
        """What has ended since the last call, and the names of the jobs that run at the moment."""

    @abstractmethod
    def stop(self) -> str:
        """End what can be ended, after Ctrl-C or an error; says what happens to the rest."""

    def made(self) -> Sequence[Path]:
        """Files in the folder of logs that the tasks of the last `start` leave besides their own logs."""
        return ()


class InProcess(Executor):
    """One job after the other, here.

    Args:
        allow_versions: see `run_job`.
    """

    name = "process"

    def __init__(self, *, allow_versions: bool = False) -> None:
        self._allow_versions = allow_versions
        self._ended: list[Ended] = []

    def room(self) -> int:
        """One, if the last one's end has been asked for."""
        return 1 - len(self._ended)

    def start(self, tasks: Sequence[Task]) -> None:
        """Run it to its end."""
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
        """What has ended."""
        ended, self._ended = self._ended, []
        return ended, set()

    def stop(self) -> str:
        """Nothing is left running."""
        return "the job in progress was stopped"


class LocalWorkers(Executor):
    """A process for each job, so many at a time.

    Args:
        workers: jobs side by side.
        threads: of torch in each; `threads_for(workers)` by default.
        allow_versions: see `run_job`.
    """

    name = "local"

    def __init__(
        self, workers: int, *, threads: int | None = None, allow_versions: bool = False
    ) -> None:
        self.workers, self.threads = workers, threads or threads_for(workers)
        self._allow_versions = allow_versions
        self._running: dict[str, tuple[Task, subprocess.Popen[bytes]]] = {}

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [process.pid for _, process in self._running.values()]

    def room(self) -> int:
        """Workers that are free."""
        return self.workers - len(self._running)

    def start(self, tasks: Sequence[Task]) -> None:
        """Start a worker for each."""
        for task in tasks:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            with task.log.open("ab") as log:
                # Its standard input stays open as long as this process lives. A session of its own keeps
                # Ctrl-C from it: this process stops it.
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
        """The command line of a worker. -P: a folder `experiments` that lies here is not imported."""
        command = [
            sys.executable,
            "-P",
            "-m",
            "treespec.experiments.sweep.job",
            os.fspath(task.folder),
        ]
        command += ["--attempt", str(task.attempt), "--threads", str(self.threads)]
        command += ["--workers", str(self.workers), "--with-parent"]
        return command + ["--allow-versions"] * self._allow_versions

    def poll(self) -> tuple[list[Ended], set[str]]:
        """Workers that are gone, and those that are not."""
        ended = []
        for name, (task, process) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                _hang_up(process)
                ended.append(Ended(task, None if code == 0 else _death(code, task.log)))
        return ended, set(self._running)

    def stop(self) -> str:
        """Kill the workers: what they have finished is on the disk, and the rest is done again."""
        stopped = len(self._running)
        for _, process in self._running.values():
            process.kill()
        for _, process in self._running.values():
            process.wait()
            _hang_up(process)
        self._running.clear()
        return f"{stopped} workers were stopped"


def threads_for(workers: int) -> int:
    """Threads of torch for each of so many workers: a share of the cores, at most what the user allows."""
    affinity = psutil.Process().cpu_affinity() if hasattr(psutil.Process, "cpu_affinity") else None
    cores = len(affinity) if affinity else psutil.cpu_count() or 1
    return at_most_allowed(max(1, cores // workers))


def _hang_up(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipe to a worker that is gone."""
    if process.stdin is not None:
        process.stdin.close()


def _environment(threads: int) -> dict[str, str]:
    """That of this process, with the same code on the path and so many threads."""
    root = os.fspath(Path(treespec.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**os.environ, **counts, "PYTHONPATH": path}


def _death(code: int, log: Path) -> str:
    """Why a worker ended, if it did not say so itself."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"the worker was killed by signal {-code} ({name}); see {log}"
    tail = (
        log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].strip()
        if log.exists()
        else ""
    )
    return f"the worker ended with exit code {code}: {' '.join(tail.split())}; see {log}"
