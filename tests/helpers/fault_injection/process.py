"""`treespec` in processes of its own, which a fault can happen to.

They are forked from a process that has loaded the models (`warm`). So most moments lie where a run decodes
and writes, and not in its seconds of starting; everything else is what the command line does.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

WARM = "fault_injection.warm"

PATIENCE_S = 1800.0
"""No process of a machine under load takes so long: only one that hangs."""

POLL_S = 0.005

_ASKING = threading.Lock()
"""Held while Python asks whether processes have ended, which it does of all of them when one is started: of
two threads that ask at once, the second is told exit code 255."""


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    code: int
    stderr: str


class Process:
    """A process that runs `treespec`.

    Args:
        process: started.
        said: the file that its stderr goes to.
        begun: the file that it makes when it becomes the command.
    """

    def __init__(self, process: Any, said: Path, begun: Path) -> None:
        self._process, self._said, self._begun = process, said, begun

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        with _ASKING:
            return self._process.is_alive()

    @property
    def begun(self) -> bool:
        """Whether it is the command; before, it is Python's own and ends as Python does."""
        return self._begun.exists()

    def signal(self, name: str) -> None:
        """Send it a signal, such as SIGKILL, unless it has ended."""
        if self.alive:
            os.kill(self._process.pid, getattr(signal, name))

    def wait(self) -> Done:
        """Wait for its end.

        Raises:
            TimeoutError: after `PATIENCE_S`.
        """
        end = time.monotonic() + PATIENCE_S
        while self.alive:
            if time.monotonic() > end:
                self._process.kill()
                raise TimeoutError(f"a process did not end within {PATIENCE_S:g} s")
            time.sleep(POLL_S)
        return Done(self._process.exitcode, self._said.read_text(encoding="utf-8"))


def start(arguments: Sequence[str], work: Path) -> Process:
    """Start `treespec` with these arguments in a folder; what it prints goes to files in it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    name = uuid4()
    said, begun = work / f"said-{name}.txt", work / f"begun-{name}"
    said.touch()  # it may be killed before it says a word
    process = context.Process(target=_treespec, args=(list(arguments), work, said, begun))
    with _ASKING:
        process.start()
    return Process(process, said, begun)


def last_line(done: Done) -> str:
    """The last thing that a process said."""
    return (done.stderr.strip().splitlines() or ["(nothing)"])[-1]


def _treespec(
    arguments: list[str],
    work: Path,
    said: Path,
    begun: Path,
) -> None:
    """What the process does."""
    from treespec.experiments.cli import main as cli

    app = cli.app

    def command(*given: Any, **more: Any) -> Any:
        """Begun and ended where `main` answers a Ctrl-C: however slow the machine is, none falls beside."""
        begun.touch()
        try:
            return app(*given, **more)
        finally:  # what is left is the end of multiprocessing's process, which calls an interrupt 1
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    cli.app = command  # pyrefly: ignore[bad-assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    os.chdir(work)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    cli.main(arguments)
