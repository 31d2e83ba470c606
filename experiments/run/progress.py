"""What a run shows while it works: a bar on a screen, a line now and then in a file or a pipe."""

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
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

__all__ = ["Begin", "Reporter", "clock"]

LINE_EVERY_S = 10.0
"""Between two lines where nothing can be drawn over: logs of clusters, CI, `nohup`."""


class Begin(Protocol):
    """What is called as each part of something long begins."""

    def __call__(self, text: str, work: int = 1) -> None:
        """Show the part.

        Args:
            text: what it is.
            work: how much of the total it is.
        """
        ...


class Reporter:
    """Shows progress on a console, or nothing.

    Args:
        console: where to; None shows nothing. Where it is neither a terminal nor a notebook, lines are
            printed, at most one in `LINE_EVERY_S`.
    """

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self._lines = console is not None and not (console.is_terminal or console.is_jupyter)

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False)

    @contextmanager
    def task(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show that something of unknown length goes on; what is given replaces the text."""
        if self.console is None:
            yield lambda text: None
        elif self._lines:
            self.note(f"{text} ...")
            yield _now_and_then(lambda text: self.note(f"{text} ..."))
        else:
            with self.console.status(text) as status:
                yield lambda text: status.update(text)

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
        """Show a bar with the time left; call what is given with a text as each part begins.

        Args:
            total: work that is to be done, of all parts together. The time left is that of all of it, as
                far as what is done took.
            done: units that were done before, said once.
            doing: shown until the first part begins.
            finished: shown after the last.
            counted: what the work is counted in.
            may_end_early: the time left is at most so much.
        """
        if self.console is None or total == 0:
            yield lambda text, work=1: None
            return
        if done:
            self.note(f"{done} units are finished already")
        most, of_all = "at most " * may_end_early, f" {counted}" * bool(counted)
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *([TextColumn(counted)] if counted else []),
            TimeElapsedColumn(),
            _Left(most),
        ]
        progress = Progress(*columns, console=self.console, disable=self._lines)
        with progress:
            task = progress.add_task(doing, total=total, ends=None)
            start, over, going = time.monotonic(), 0, 0

            def show(text: str) -> None:
                took = time.monotonic() - start
                left = "" if not over else f", {most}{clock(round(_left(took, over, total)))} left"
                self.note(f"{text}: {over} of {total}{of_all} in {clock(round(took))}{left}")

            line = _now_and_then(show) if self._lines else lambda text: None

            def begin(text: str, work: int = 1) -> None:
                nonlocal over, going, total
                over, going = over + going, work
                total = max(total, over + work)  # parts that are done again are more
                now = time.monotonic()
                ends = now + _left(now - start, over, total) if over else None
                progress.update(task, description=text, completed=over, total=total, ends=ends)
                line(text)

            yield begin
            over += going
            progress.update(task, description=finished, completed=over, ends=None)
        if self._lines:
            took = clock(round(time.monotonic() - start))
            self.note(f"{finished}: {over} of {total}{of_all} in {took}")


def _left(took: float, over: int, total: int) -> float:
    """Seconds that the rest takes if it goes on like what is over."""
    return took / over * (total - over)


class _Left(ProgressColumn):
    """The time left, as it was estimated when the latest part began."""

    def __init__(self, most: str) -> None:
        super().__init__()
        self.most = most

    def render(self, task: Task) -> Text:
        """Nothing before the first part is over."""
        ends = task.fields["ends"]
        if ends is None:
            return Text()
        return Text(f"{self.most}{clock(max(0, round(ends - time.monotonic())))} left")


def _now_and_then(say: Callable[[str], None]) -> Callable[[str], None]:
    """Say something unless something was said a moment ago."""
    latest = time.monotonic()

    def perhaps(text: str) -> None:
        nonlocal latest
        if time.monotonic() - latest >= LINE_EVERY_S:
            latest = time.monotonic()
            say(text)

    return perhaps


def clock(seconds: int) -> str:
    """Such as 1:05 or 1:00:05."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
