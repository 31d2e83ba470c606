"""Run the jobs of a sweep on SLURM, through submitit.

A submission is a call of `run_job` with the path of a job's folder, so every node must see the folder. How
a job ended is recorded in its folder; SLURM is only asked which jobs still wait or run (by squeue: sacct
needs an accounting database, which many small clusters lack).
"""

import getpass
import io
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from treespec.errors import in_words, one_line
from treespec.experiments.config.files import require_one_line
from treespec.experiments.errors import SweepError
from treespec.experiments.sweep.attempts import Ended, Task, write_json
from treespec.experiments.sweep.executors import CODE, Executor, tail_of
from treespec.experiments.sweep.job import run_job
from treespec.files import brief
from treespec.reading_models import read_form

TOOLS = ("sbatch", "srun", "squeue", "scancel")
DEFAULT_MINUTES = 240
"""Time limit of a job unless the user gives one."""

ASK_EVERY_S = 2.0
PATIENCE_S = 90.0
"""Seconds that a job may be missing from SLURM before it counts as ended: network file systems can show
what another node wrote up to a minute late."""

SILENCE_S = 120.0
"""Seconds without an answer from SLURM before that is an error."""

ALIVE = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESIZING",
    "SUSPENDED",
}
RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING"}


class Slurm(Executor):
    """Submits all jobs at once, as an array.

    Args:
        logs: folder for the files of submitit; every node must see it.
        parameters: of sbatch: `partition`, `time` (minutes), `cpus_per_task`, `mem`, `account`, ...
        workers: maximum number of jobs in parallel; None to leave it to SLURM.
        run: what each job runs, with the arguments of `sweep.job.run_job`.
    """

    name, queues = "slurm", True

    def __init__(
        self,
        logs: Path,
        parameters: Mapping[str, Any],
        *,
        workers: int | None = None,
        allow_versions: bool = False,
        cancel: bool = False,
        run: Callable[..., str] = run_job,
    ) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise SweepError(
                f"SLURM is not available: {', '.join(missing)} not found on the PATH; use --executor "
                "local, or log in to a node of the cluster"
            )
        import submitit

        self.workers = workers or 0
        self._allow_versions, self._cancel, self._run_job = allow_versions, cancel, run
        self._running: dict[str, tuple[Task, str]] = {}
        self._missing: dict[str, float] = {}
        self._states: dict[str, str] = {}
        self._asked, self._answered = float("-inf"), time.monotonic()
        self._logs = logs.resolve()
        require_one_line(self._logs, SweepError)
        known = submitit.SlurmExecutor._valid_parameters()
        given = {key.replace("-", "_"): value for key, value in parameters.items()}
        additional = {key: value for key, value in given.items() if key not in known}
        settings: dict[str, Any] = {"time": DEFAULT_MINUTES, "job_name": "treespec"}
        settings |= {key: value for key, value in given.items() if key in known}
        settings["setup"] = [*_same_code(), *settings.get("setup", [])]
        if workers:
            settings["array_parallelism"] = workers
        if additional:
            settings["additional_parameters"] = additional
        try:
            self._submitter = submitit.SlurmExecutor(folder=self._logs)
            self._submitter.update_parameters(**settings)
        except Exception as error:  # submitit checks little, and raises any type of error
            raise SweepError(f"--slurm: {in_words(error, 'submitit')}") from None

    def room(self) -> int:
        """A large number, because SLURM queues jobs itself."""
        return 1_000_000

    def start(self, tasks: Sequence[Task]) -> None:
        """Submit these jobs, except those that an earlier command submitted and that SLURM still knows."""
        new = []
        self._ask(at_once=True)
        for task in tasks:
            earlier = _submitted(task)
            if earlier is not None and self._states.get(earlier, "") in ALIVE | RUNNING:
                self._running[task.name] = task, earlier
            else:
                new.append(task)
        if not new:
            return
        about = {"executor": self.name, "workers": self.workers or None}
        try:
            # submitit both prints and raises the message of sbatch: once is enough.
            with redirect_stderr(io.StringIO()), self._submitter.batch():
                jobs = [
                    self._submitter.submit(
                        self._run_job,
                        os.fspath(task.folder.resolve()),
                        task.attempt,
                        about,
                        allow_versions=self._allow_versions,
                    )
                    for task in new
                ]
        except Exception as error:  # submitit wraps what sbatch prints
            message = " ".join(str(error).split()) or in_words(error, "sbatch")
            raise SweepError(f"SLURM refused the jobs: {message}") from None
        for task, job in zip(new, jobs, strict=True):
            write_json(task.folder, "slurm.json", {"job": job.job_id, "attempt": task.attempt})
            self._running[task.name] = task, job.job_id
        self._asked = float("-inf")

    def poll(self) -> tuple[list[Ended], set[str]]:
        """Jobs that have ended, and those that run; jobs waiting in SLURM's queue are neither."""
        fresh = self._ask()
        ended, running = [], set()
        for name, (task, job) in list(self._running.items()):
            state = self._states.get(job, "")
            if (task.folder / "attempts" / f"{task.attempt:03d}.json").exists():
                ended.append(Ended(task, None))
            elif state in RUNNING:
                running.add(name)
            elif state not in ALIVE and fresh:
                since = self._missing.setdefault(name, self._answered)
                if self._answered - since >= PATIENCE_S:
                    ended.append(Ended(task, self._reason(job, state)))
            if state in ALIVE | RUNNING:
                self._missing.pop(name, None)
        for end in ended:
            del self._running[end.task.name]
            self._missing.pop(end.task.name, None)
        return ended, running

    def stop(self) -> str:
        """Leave the jobs to SLURM, or cancel them if `cancel` is set."""
        jobs = sorted({job.split("_")[0] for _, job in self._running.values()})
        if not jobs:
            return "no job was left in SLURM"
        if self._cancel:
            for _, job in self._running.values():
                subprocess.run(["scancel", job], capture_output=True, check=False)
            return f"{len(self._running)} SLURM jobs were cancelled"
        return (
            f"{len(self._running)} SLURM jobs keep running ({', '.join(jobs)}): the same command picks "
            f"them up, `scancel {' '.join(jobs)}` ends them"
        )

    def _ask(self, at_once: bool = False) -> bool:
        """Update the states of this user's jobs; False if SLURM was not asked now or did not answer."""
        now = time.monotonic()
        if not at_once and now - self._asked < ASK_EVERY_S:
            return False
        self._asked = now
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T"]
        answer = subprocess.run(
            [*command, f"--user={getpass.getuser()}"], capture_output=True, text=True, check=False
        )
        if answer.returncode:
            if at_once or now - self._answered > SILENCE_S:
                raise SweepError(
                    f"SLURM does not answer: {' '.join(answer.stderr.split())}; the same command resumes "
                    "once it does"
                )
            return False
        self._answered = now
        lines = (line.split("|") for line in answer.stdout.splitlines() if "|" in line)
        self._states = {parts[0].strip(): parts[1].strip() for parts in lines}
        return True

    def _reason(self, job: str, state: str) -> str:
        """Why a job ended, for jobs that did not record it themselves."""
        logs = sorted(self._logs.glob(f"{job}_*_log.err"))
        message = tail_of(logs[-1]) if logs else ""
        ended = f"SLURM job {job} ended{f' ({state})' if state else ''} without a result"
        return f"{ended}: {message}" if message else ended


def _submitted(task: Task) -> str | None:
    """The SLURM job of this attempt, if an earlier command submitted it."""
    try:
        data = read_form(task.folder / "slurm.json", SweepError)
        return str(data["job"]) if data["attempt"] == task.attempt else None
    except (SweepError, KeyError, TypeError):  # no such file, or a damaged one
        return None


def _same_code() -> list[str]:
    """Lines of the batch script that let the job import the same code as this process, from any folder."""
    return [
        "export PYTHONSAFEPATH=1",
        f"export PYTHONPATH={shlex.quote(CODE)}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export TRANSFORMERS_VERBOSITY=error HF_HUB_DISABLE_PROGRESS_BARS=1 TOKENIZERS_PARALLELISM=false",
    ]


LISTS = ("setup", "teardown", "srun_args")
"""Settings of submitit that take several values, one each time they are given."""

SWITCHES = ("stderr_to_stdout", "use_srun")
"""Settings of submitit that can be switched off."""


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """Parse the settings of `--slurm KEY=VALUE` as text for sbatch, not as YAML, where 1:00:00 is 3600.

    Hyphens in keys become underscores. Whole numbers become integers, `true` a switch; all else is text.
    """
    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        key = key.lstrip("-").replace("-", "_")
        if not equals or not re.fullmatch(r"\w+", key) or not value or not one_line(value):
            raise SweepError(
                f"--slurm {brief(text)}: write key=value on one line, such as partition=gpu"
            )
        if key == "additional_parameters":
            raise SweepError(f"--slurm {brief(text)}: give each parameter as --slurm KEY=VALUE")
        setting = _setting(key, value)
        if key == "time" and (not isinstance(setting, int) or setting is True):
            raise SweepError(
                f"--slurm {brief(text)}: must be a whole number of minutes, such as time=60 for an hour"
            )
        settings[key] = [*settings.get(key, []), value] if key in LISTS else setting
    return settings


def _setting(key: str, value: str) -> int | bool | str:
    if re.fullmatch(r"0|[1-9][0-9]{0,17}", value):
        return int(value)
    if value == "true":  # sbatch has switches without a value, such as --requeue
        return True
    return False if value == "false" and key in SWITCHES else value
