"""The outcome of each attempt at a job, in a small file of its own, and whether the job is finished.

A worker writes the file when it ends, successfully or not. If a worker was killed, the sweep writes the
file in its place, so that every failure has a recorded reason. Only the folder of a job's run says whether
the job is finished.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treespec.experiments.errors import SweepError, SweepNotWritten
from treespec.files import write_whole
from treespec.reading_models import read_form


class _Attempt(BaseModel):
    error: str | None
    workers: int | None = None
    threads: int | None = None


class _Manifest(BaseModel):
    finished: str | None = None
    errors: int | None = None


@dataclass(frozen=True)
class Task:
    name: str
    folder: Path
    attempt: int
    log: Path


@dataclass(frozen=True)
class Ended:
    """A task that has ended.

    Args:
        error: why it failed; None if it did not, or if its attempt's file says why.
    """

    task: Task
    error: str | None


@dataclass(frozen=True)
class Attempt:
    """An attempt at a job that has ended.

    Args:
        number: counted from 1.
        error: why it failed, in one line; None if the job is finished.
        about: where and how it ran: executor, workers, host, threads, versions, started, ended.
    """

    number: int
    error: str | None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobOutcome:
    """The state of a job.

    Args:
        ran: whether its run reached its end, with or without errors.
        error: why the job is not finished, by its last attempt; None if it is finished or was never tried.
    """

    name: str
    ran: bool
    errors: int
    error: str | None
    attempts: tuple[Attempt, ...]

    @property
    def finished(self) -> bool:
        return self.ran and not self.errors

    @property
    def state(self) -> str:
        """`finished`, `failed`, or `not finished`: never tried, or stopped in the middle."""
        if self.finished:
            return "finished"
        return "not finished" if self.error is None else "failed"

    def data(self) -> Mapping[str, Any]:
        return {
            "job": self.name,
            "state": self.state,
            "errors": self.errors,
            "error": self.error,
            "attempts": [{"number": a.number, "error": a.error, **a.about} for a in self.attempts],
        }


def read_attempts(job: Path) -> list[Attempt]:
    """The attempts that have ended, oldest first."""
    attempts = []
    for path in sorted((job / "attempts").glob("*.json")):
        data = read_form(path, SweepError, "remove it", _Attempt)
        if not path.stem.isdecimal():
            raise SweepError(f"{path} is damaged: its name is not a number; remove it")
        attempts.append(Attempt(int(path.stem), data.pop("error"), data))
    return attempts


def outcome_of(job: Path) -> JobOutcome:
    attempts = tuple(read_attempts(job))
    path = job / "run" / "manifest.json"
    manifest = read_form(path, SweepError, form=_Manifest) if path.exists() else {}
    ran = manifest.get("finished") is not None
    errors = int(manifest.get("errors") or 0) if ran else 0
    error = attempts[-1].error if attempts and (errors or not ran) else None
    if errors and error is None:
        error = f"{errors} of its rows hold an error"
    return JobOutcome(job.name, ran, errors, error, attempts)


def write_attempt(job: Path, attempt: Attempt) -> None:
    """Record how an attempt ended, unless its worker has recorded that itself."""
    name = f"attempts/{attempt.number:03d}.json"
    if not (job / name).exists():
        write_json(job, name, {"error": attempt.error, **attempt.about})


def write_json(job: Path, name: str, data: Any) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    try:
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(job / name, text)
    except OSError as error:
        raise SweepNotWritten(
            f"{job / name} cannot be written: {error.strerror}. Finished results are "
            "kept, and the same command resumes the sweep"
        ) from None
