"""Progress of a sweep: a line for each change of a job's state."""

from collections.abc import Iterable

from rich.console import Console

ENDED = ("finished", "failed")


class Board:
    """The states of all jobs, by name: `waiting`, `running`, `finished` or `failed`."""

    def __init__(self, jobs: Iterable[str], console: Console | None) -> None:
        self.states = dict.fromkeys(jobs, "waiting")
        self._console = console

    def set(self, name: str, state: str, note: str = "") -> None:
        """Set the state of a job; a change is printed, with the number of jobs that have ended."""
        if self.states[name] == state and not note:
            return
        self.states[name] = state
        ended, total = sum(s in ENDED for s in self.states.values()), str(len(self.states))
        self.note(f"[{ended:{len(total)}}/{total}]  {name}: {state}{f': {note}' if note else ''}")

    def note(self, text: str) -> None:
        """Print a line."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
