"""Progress of a sweep: a live table in a terminal, and a line per change elsewhere."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from treespec.experiments.errors import SweepError
from treespec.experiments.run.progress import clock
from treespec.reading_models import read_form

STYLES = {"running": "cyan", "waiting": "dim", "finished": "green", "failed": "red"}
ROWS_BESIDE = 8
"""Lines of the terminal that do not show jobs."""


@dataclass
class JobView:
    """The displayed state of a job.

    Args:
        total: number of prompts to decode, times the repeats.
    """

    folder: Path
    total: int
    samplings: int
    state: str = "waiting"
    done: int = 0
    note: str = ""
    started: float | None = field(default=None, repr=False)
    ended: float | None = field(default=None, repr=False)

    def seconds(self) -> float | None:
        """Seconds since the job was started by this command; None if it was not."""
        if self.started is None:
            return None
        return (time.monotonic() if self.ended is None else self.ended) - self.started


class Board:
    """The states of all jobs, shown on a console."""

    def __init__(self, jobs: Mapping[str, JobView], console: Console | None) -> None:
        self.jobs, self._console = dict(jobs), console
        self._started = time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live table inside the `with` block, if the console is a terminal."""
        if self._console is None or not self._console.is_terminal:
            yield
            return
        # A thread of rich draws the table, because jobs in this process block the main thread.
        with Live(
            get_renderable=self.table,
            console=self._console,
            refresh_per_second=1,
            transient=True,
        ):
            yield

    def set(self, name: str, state: str, note: str = "") -> None:
        """Set the state of a job, and print the change if there is no live table."""
        job = self.jobs[name]
        if (job.state, job.note) == (state, note):
            return
        job.state, job.note = state, note
        if state == "running":
            job.started, job.ended = job.started or time.monotonic(), None
        elif job.started is not None and job.ended is None:
            job.ended = time.monotonic()
        self.note(f"{self.count()}  {name}: {state}{f': {note}' if note else ''}", live=False)

    def note(self, text: str, *, live: bool = True) -> None:
        """Print a line that stays on the screen; without `live`, only if there is no live table."""
        if self._console is not None and (live or not self._console.is_terminal):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def count(self) -> str:
        """The number of jobs that have ended, such as `[ 3/24]`."""
        ended = sum(job.state in ("finished", "failed") for job in self.jobs.values())
        total = str(len(self.jobs))
        return f"[{ended:{len(total)}}/{total}]"

    def table(self) -> Table:
        """The table of jobs; if not all fit on the screen, running and failed ones are preferred."""
        counts = Counter(job.state for job in self.jobs.values())
        title = ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])
        elapsed = clock(int(time.monotonic() - self._started))
        table = Table(
            title=f"{len(self.jobs)} jobs: {title} ({elapsed})",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
        )
        table.add_column("job", overflow="fold", ratio=1)
        table.add_column("state", no_wrap=True)
        for head in ("prompts", "elapsed"):
            table.add_column(head, justify="right", no_wrap=True)
        shown = self._shown()
        for name in shown:
            job = self.jobs[name]
            if job.state == "running":
                job.done = prompts_done(job)
            seconds = job.seconds()
            table.add_row(
                escape(f"{name}: {job.note}" if job.note else name),
                f"[{STYLES[job.state]}]{job.state}[/]",
                f"{job.done}/{job.total}",
                "" if seconds is None else clock(int(seconds)),
            )
        if len(shown) < len(self.jobs):
            table.caption = f"and {len(self.jobs) - len(shown)} more"
        return table

    def _shown(self) -> Sequence[str]:
        room = max(4, (self._console.height if self._console else 50) - ROWS_BESIDE)
        if len(self.jobs) <= room:
            return list(self.jobs)
        rank = {"running": 0, "failed": 1, "waiting": 2, "finished": 3}
        chosen = sorted(self.jobs, key=lambda name: rank[self.jobs[name].state])[:room]
        return [name for name in self.jobs if name in set(chosen)]


def prompts_done(job: JobView) -> int:
    """Number of prompts that a job has decoded under every setting, read from its run's folder."""
    run = job.folder / "run"
    with suppress(SweepError, OSError, KeyError, TypeError, ZeroDivisionError):
        methods = len(read_form(run / "manifest.json", SweepError)["methods"])
        rows = (run / "prompts.jsonl").read_bytes().count(b"\n")
        return min(job.total, rows // (methods * job.samplings))
    return 0
