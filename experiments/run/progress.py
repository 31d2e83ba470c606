"""Show the progress of a run: a bar on a screen, occasional lines in a file or a pipe."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from treespec.errors import visible

LINE_EVERY_S = 10.0
"""Seconds between two lines where output cannot be overwritten: logs of clusters, CI, `nohup`."""


class Begin(Protocol):
    """A callback for the beginning of each part of a long task."""

    def __call__(self, text: str, work: int = 1) -> None:
        """Show that a part begins."""


class Reporter:
    """Shows progress on a console, or nowhere.

    Args:
        console: where to show progress; None shows nothing. If it is neither a terminal nor a notebook,
            lines are printed, at most one every `LINE_EVERY_S` seconds.
    """

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self._lines = console is not None and not (console.is_terminal or console.is_jupyter)

    def note(self, text: str) -> None:
        """Print a message that stays on the screen."""
        if self.console is not None:
            self.console.print(visible(text), markup=False, highlight=False)

    @contextmanager
    def task(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a task of unknown length and its time; calling the yielded function replaces the text."""
        if self.console is None:
            yield lambda text: None
        elif self._lines:
            self.note(f"{text} ...")
            latest, start = [text], time.monotonic()
            with _every(
                LINE_EVERY_S,
                lambda: self.note(f"{latest[0]} ... {clock(round(time.monotonic() - start))}"),
            ):
                yield lambda text: latest.__setitem__(0, text)
        else:
            columns = [
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
            ]
            with Progress(*columns, console=self.console, transient=True) as progress:
                task = progress.add_task(text, total=None)
                yield lambda text: progress.update(task, description=text)

    @contextmanager
    def units(
        self,
        total: int,
        done: int = 0,
        *,
        doing: str = "decoding",
        finished: str = "decoded",
        counted: str = "",
        may_end_early: bool = False,
    ) -> Iterator[Begin]:
        """Show a bar with the time left; call the yielded function as each part begins.

        Args:
            total: work of all parts together. The time left is extrapolated from the work done so far.
            done: number of units that were finished before, mentioned once.
            doing: text shown until the first part begins.
            finished: text shown after the last part.
            counted: unit that the work is counted in.
            may_end_early: say that the time left is an upper bound.
        """
        if self.console is None or total == 0:
            yield lambda text, work=1: None
            return
        if done:
            self.note(f"{done} units are finished already")
        at_most, unit = "at most " * may_end_early, f" {counted}" * bool(counted)
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *([TextColumn(counted)] if counted else []),
            TimeElapsedColumn(),
            _TimeLeft(at_most),
        ]
        with Progress(*columns, console=self.console, disable=self._lines) as progress:
            task = progress.add_task(doing, total=total, ends=None)
            start, completed, current = time.monotonic(), 0, 0

            def show(text: str) -> None:
                took, left = time.monotonic() - start, ""
                if completed:
                    left = round(_seconds_left(took, completed, total))
                    left = f", {at_most}{clock(left)} left"
                self.note(f"{text}: {completed} of {total}{unit} in {clock(round(took))}{left}")

            line = _throttled(show) if self._lines else lambda text: None

            def begin(text: str, work: int = 1) -> None:
                nonlocal completed, current, total
                completed, current = completed + current, work
                total = max(total, completed + work)  # repeated parts add to the total
                now = time.monotonic()
                ends = now + _seconds_left(now - start, completed, total) if completed else None
                progress.update(task, description=text, completed=completed, total=total, ends=ends)
                line(text)

            yield begin
            completed += current
            progress.update(task, description=finished, completed=completed, ends=None)
        if self._lines:
            took = clock(round(time.monotonic() - start))
            self.note(f"{finished}: {completed} of {total}{unit} in {took}")


def _seconds_left(took: float, completed: int, total: int) -> float:
    """Seconds for the remaining work, at the average speed so far."""
    return took / completed * (total - completed)


class _TimeLeft(ProgressColumn):
    """The time left, counted down from the estimate made when the latest part began."""

    def __init__(self, at_most: str) -> None:
        super().__init__()
        self.at_most = at_most

    def render(self, task: Task) -> Text:
        """The time left; empty until the first part is done."""
        ends = task.fields["ends"]
        if ends is None:
            return Text()
        return Text(f"{self.at_most}{clock(max(0, round(ends - time.monotonic())))} left")


@contextmanager
def _every(seconds: float, show: Callable[[], None]) -> Iterator[None]:
    """Call a function every so many seconds, from a thread of its own: one call may take minutes."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            show()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _throttled(say: Callable[[str], None]) -> Callable[[str], None]:
    """Limit a function that prints a line to one call every `LINE_EVERY_S` seconds."""
    latest = time.monotonic()

    def say_if_due(text: str) -> None:
        nonlocal latest
        if time.monotonic() - latest >= LINE_EVERY_S:
            latest = time.monotonic()
            say(text)

    return say_if_due


def clock(seconds: int) -> str:
    """A duration such as 1:05 or 1:00:05."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
