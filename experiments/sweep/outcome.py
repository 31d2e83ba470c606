"""Whether a job is finished: its run's folder says so, and nobody else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.experiments.records.forms import COUNT, TEXT, fits, or_null
from treespec.experiments.sweep.attempts import Attempt, read_attempts, read_json
from treespec.experiments.sweep.errors import SweepError

__all__ = ["JobOutcome", "outcome_of"]


@dataclass(frozen=True)
class JobOutcome:
    """How far a job is.

    Args:
        name: of the job.
        ran: whether its run came to its end, with or without errors.
        errors: rows that hold an error.
        error: why it is not finished well, as far as an attempt says; None if it is, or was never tried.
        attempts: that have ended.
    """

    name: str
    ran: bool
    errors: int
    error: str | None
    attempts: tuple[Attempt, ...]

    @property
    def finished(self) -> bool:
        """Every method finished every prompt."""
        return self.ran and not self.errors

    @property
    def state(self) -> str:
        """`finished`, `failed`, or `not finished`: never tried, or stopped in the middle."""
        if self.finished:
            return "finished"
        return "not finished" if self.error is None else "failed"

    def data(self) -> Mapping[str, Any]:
        """As plain data."""
        return {
            "job": self.name,
            "state": self.state,
            "errors": self.errors,
            "error": self.error,
            "attempts": [{"number": a.number, "error": a.error, **a.about} for a in self.attempts],
        }


def outcome_of(job: Path) -> JobOutcome:
    """The outcome of a job, from its folder.

    Raises:
        SweepError: if a file of it is damaged.
    """
    attempts = tuple(read_attempts(job))
    path = job / "run" / "manifest.json"
    manifest = read_json(path) if path.exists() else {}
    problem = fits(manifest, {"finished?": or_null(TEXT), "errors?": or_null(COUNT)})
    if problem:
        raise SweepError(f"{path} is no manifest of a run: {problem}")
    ran = manifest.get("finished") is not None
    errors = int(manifest.get("errors") or 0) if ran else 0
    error = None
    if not ran or errors:
        error = attempts[-1].error if attempts else None
        if errors and error is None:
            error = f"{errors} of its rows hold an error"
    return JobOutcome(job.name, ran, errors, error, attempts)
