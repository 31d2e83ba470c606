"""Two processes on one run folder: one is refused with a line that says so, the other is not disturbed."""

import time
from collections.abc import Callable

from fault_injection.process import PATIENCE_S, complaints, start
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
        first = start(setting.arguments(folder), setting.work)
        end = time.monotonic() + PATIENCE_S
        while not together and not (folder / "prompts.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.01)
        second = start(setting.arguments(folder), setting.work)
        found = sorted((first.wait(), second.wait()), key=lambda done: done.code)
        wrong = () if found[0].code == 0 else (f"exit codes {found[0].code} and {found[1].code}",)
        wrong += complaints(found[1], [2], REFUSED)
        if found[0].code == 0:
            wrong += tuple(differences(folder, setting.reference))
        cases.append(Case("two processes", what, wrong))
    return cases
