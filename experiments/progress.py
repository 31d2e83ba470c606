"""What a run shows while it works."""

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

__all__ = ["Reporter"]


class Reporter:
    """Shows progress on a console, or nothing.

    Args:
        console: where to; None shows nothing.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console

    def note(self, text: str) -> None:
        """Say something that stays on the screen."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def task(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show that something of unknown length goes on; what is given replaces the text."""
        if self._console is None:
            yield lambda text: None
            return
        with self._console.status(text) as status:
            yield lambda text: status.update(text)

    @contextmanager
    def units(self, total: int, done: int) -> Iterator[Callable[[str], None]]:
        """Show a bar with the time left; call what is given with a text as each part begins."""
        if self._console is None or total == 0:
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
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("decoding", total=total)
            begun = 0

            def begin(text: str) -> None:
                nonlocal begun
                progress.update(task, description=text, completed=begun)
                begun += 1

            yield begin
            progress.update(task, description="decoded", completed=total)
