"""What a run shows while it works: a bar on a screen, a line now and then in a file or a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["Reporter", "clock"]

LINE_EVERY_S = 10.0
"""Between two lines where nothing can be drawn over: logs of clusters, CI, `nohup`."""


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
        self, total: int, done: int = 0, *, doing: str = "decoding", finished: str = "decoded"
    ) -> Iterator[Callable[[str], None]]:
        """Show a bar with the time left; call what is given with a text as each part begins.

        Args:
            total: parts that are to be done.
            done: that were done before, said once.
            doing: shown until the first part begins.
            finished: shown after the last.
        """
        if self.console is None or total == 0:
            yield lambda text: None
            return
        if done:
            self.note(f"{done} units are finished already")
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        progress = Progress(*columns, console=self.console, disable=self._lines)
        with progress:
            task = progress.add_task(doing, total=total)
            start, begun = time.monotonic(), 0

            def show(text: str) -> None:
                took = time.monotonic() - start
                left = f", {clock(round(took / begun * (total - begun)))} left" if begun else ""
                self.note(f"{text}: {begun} of {total} in {clock(round(took))}{left}")

            line = _now_and_then(show) if self._lines else lambda text: None

            def begin(text: str) -> None:
                nonlocal begun, total
                total = max(total, begun + 1)  # parts that are done again are more
                progress.update(task, description=text, completed=begun, total=total)
                line(text)
                begun += 1

            yield begin
            progress.update(task, description=finished, completed=begun)
        if self._lines:
            self.note(f"{finished}: {begun} of {total} in {clock(round(time.monotonic() - start))}")


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
