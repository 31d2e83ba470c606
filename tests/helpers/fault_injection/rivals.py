"""Two processes on one run folder: one is refused with a line that says so, the other is not disturbed."""

import time
from collections.abc import Callable
from pathlib import Path

from fault_injection.process import PATIENCE_S, POLL_S, Done, complaints, start
from fault_injection.rows import differences
from fault_injection.setting import Case, Setting, stage_of

__all__ = ["rivals"]

REFUSED = "is being written by another process"

TRIES = 5
"""A process may be finished before the other comes to it, on a machine under load; were the folder not
held, it would be so every time."""


def rivals(setting: Setting, count: int, say: Callable[[str], None]) -> list[Case]:
    """Start two processes, the second at the same time or while the first decodes, so many times each."""
    cases = []
    for i in range(2 * count):
        together = i < count
        what = "started together" if together else "the second while the first decodes"
        say(f"two processes: {what}")
        for again in range(TRIES):
            folder = setting.work / f"rivals-{i}-{again}"
            pair = _together(setting, folder) if together else _one_later(setting, folder)
            if pair is not None:
                break
        else:
            cases.append(Case("two processes", what, ("the first was always finished too soon",)))
            continue
        found = sorted(pair, key=lambda done: done.code)
        wrong = () if found[0].code == 0 else (f"exit codes {found[0].code} and {found[1].code}",)
        wrong += complaints(found[1], [2], REFUSED)
        if found[0].code == 0:
            wrong += tuple(differences(folder, setting.reference))
        cases.append(Case("two processes", what, wrong))
    return cases


def _together(setting: Setting, folder: Path) -> tuple[Done, Done] | None:
    """Both wait at a gate, since on a busy machine one could be finished before the other begins.

    If one was all the same, both end well: None.
    """
    gate = folder.with_name(f"{folder.name}-gate")
    first, second = (start(setting.arguments(folder), setting.work, gate=gate) for _ in range(2))
    _wait_for(lambda: first.begun and second.begun)
    gate.touch()
    pair = first.wait(), second.wait()
    return None if pair[0].code == pair[1].code == 0 else pair


def _one_later(setting: Setting, folder: Path) -> tuple[Done, Done] | None:
    """The first is stopped while it decodes, and so holds the folder, until the second has ended.

    None if it had come to its end before it was stopped.
    """
    first = start(setting.arguments(folder), setting.work)
    _wait_for(lambda: (folder / "prompts.jsonl").exists() or not first.alive)
    first.signal("SIGSTOP")
    try:
        if stage_of(folder) == "after decoding":
            return None
        second = start(setting.arguments(folder), setting.work).wait()
    finally:
        first.signal("SIGCONT")
    return first.wait(), second


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end:
        time.sleep(POLL_S)
