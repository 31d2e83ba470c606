"""Two processes on one run folder: one is refused with a line that says so, the other is not disturbed."""

import time
from collections.abc import Callable
from pathlib import Path

from fault_injection.process import PATIENCE_S, POLL_S, Done, complaints, start
from fault_injection.rows import differences
from fault_injection.setting import Case, Setting

__all__ = ["rivals"]

REFUSED = "is being written by another process"


def rivals(setting: Setting, count: int, say: Callable[[str], None]) -> list[Case]:
    """Start two processes, the second at the same time or while the first decodes, so many times each."""
    cases = []
    for i in range(2 * count):
        together = i < count
        what = "started together" if together else "the second while the first decodes"
        say(f"two processes: {what}")
        folder = setting.work / f"rivals-{i}"
        pair = _together(setting, folder) if together else _one_later(setting, folder)
        found = sorted(pair, key=lambda done: done.code)
        wrong = () if found[0].code == 0 else (f"exit codes {found[0].code} and {found[1].code}",)
        wrong += complaints(found[1], [2], REFUSED)
        if found[0].code == 0:
            wrong += tuple(differences(folder, setting.reference))
        cases.append(Case("two processes", what, wrong))
    return cases


def _together(setting: Setting, folder: Path) -> tuple[Done, Done]:
    """Both wait at a gate, since on a busy machine one could be finished before the other begins."""
    gate = folder.with_name(f"{folder.name}-gate")
    first, second = (start(setting.arguments(folder), setting.work, gate=gate) for _ in range(2))
    _wait_for(lambda: first.begun and second.begun)
    gate.touch()
    return first.wait(), second.wait()


def _one_later(setting: Setting, folder: Path) -> tuple[Done, Done]:
    """The first is stopped while it decodes, and so holds the folder, until the second has ended."""
    first = start(setting.arguments(folder), setting.work)
    _wait_for(lambda: (folder / "prompts.jsonl").exists() or not first.alive)
    first.signal("SIGSTOP")
    try:
        second = start(setting.arguments(folder), setting.work).wait()
    finally:
        first.signal("SIGCONT")
    return first.wait(), second


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end:
        time.sleep(POLL_S)
