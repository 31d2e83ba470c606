"""What other processes take of the machine: times measured beside them are not reliable.

`busy_percent` looks for a moment, before a run. `LoadWatch` tells afterwards what a whole run went through,
from counters that the kernel keeps anyway: nothing waits, and reading them takes a few milliseconds.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import psutil

__all__ = [
    "BUSY_PERCENT",
    "BUSY_RUN_PERCENT",
    "IN_TURNS",
    "NOT_RELIABLE",
    "Counters",
    "LoadWatch",
    "busy_percent",
    "busy_sentence",
    "read_counters",
]

BUSY_PERCENT = 15
"""From when on it is worth a word before a run: a moment is noisy."""

BUSY_RUN_PERCENT = 10
"""The same for the mean of a whole run."""

WATCH_S = 0.25

LEAST_S = 1.0
"""Counters go in steps of a hundredth of a second: shorter stretches tell nothing."""

LARGEST_GAP_SHARE = 0.1
"""By how much counters may miss the clock, as a share, before they are of another machine than ours."""


class Counters(NamedTuple):
    """Seconds since some beginning.

    Args:
        clock: of the wall.
        cores: cores that this process may use.
        idle: of these cores, added up.
        busy: likewise; what the host of a virtual machine took away is in it.
        ours: of this process and of those that it started, on any core.
    """

    clock: float
    cores: int
    idle: float
    busy: float
    ours: float


def busy_percent() -> float:
    """Use of all cores by other processes, watched for `WATCH_S`."""
    import psutil

    ours = psutil.Process()
    ours.cpu_percent()
    everyone = psutil.cpu_percent(interval=WATCH_S)
    return round(max(0.0, everyone - ours.cpu_percent() / (psutil.cpu_count() or 1)), 1)


def read_counters() -> Counters | None:
    """The counters now; None where the system has none for single cores (all but Linux).

    Processes under one torchrun are ours, all of them: they decode the same run.
    """
    import psutil

    if not psutil.LINUX:
        return None
    try:
        cores = os.sched_getaffinity(0)
        times = [t for core, t in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
        root = psutil.Process()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            root = root.parent() or root
        ours = _used(root) + sum(map(_used, root.children(recursive=True)))
    except (psutil.Error, OSError, ValueError, AttributeError):
        return None
    idle = sum(t.idle + t.iowait for t in times)
    # `user` and `nice` hold the time of guests too.
    busy = sum(t.user + t.nice + t.system + t.irq + t.softirq + t.steal for t in times)
    if len(times) != len(cores):  # numbered otherwise than cores are: whose are they?
        return None
    return Counters(time.monotonic(), len(cores), idle, busy, ours)


class LoadWatch:
    """Watches, from when it is made, what other processes take of the cores that this one may use.

    Args:
        read: gives the counters; `read_counters` by default.
    """

    def __init__(self, read: Callable[[], Counters | None] | None = None) -> None:
        self._read = read or read_counters
        self._first = self._read()

    def busy_percent(self) -> float | None:
        """The mean since the beginning, in percent of these cores.

        Returns:
            None where it cannot be told: no counters, less than a second, or counters that contradict the
            clock or this process's own time (of a container that sees another machine's, say).
        """
        first, now = self._first, self._read()
        if first is None or now is None or first.cores != now.cores:
            return None
        clock, _, idle, busy, ours = (b - a for a, b in zip(first, now, strict=True))
        there = clock * now.cores
        if clock < LEAST_S or abs(idle + busy - there) > LARGEST_GAP_SHARE * there:
            return None
        if busy - ours < -LARGEST_GAP_SHARE * there:
            return None
        return round(100 * max(0.0, busy - ours) / (idle + busy), 1)


NOT_RELIABLE = "its times are not reliable. Measure again on a quiet machine."
"""What a busy machine does to times that are taken as they were measured."""

IN_TURNS = (
    "tokens per second are those beside them. Methods took turns, so ratios between methods allow for it "
    "as far as their intervals say."
)
"""What it does to methods that took turns step by step."""


def busy_sentence(
    percent: float | None, during: str = "the run", means: str = NOT_RELIABLE
) -> str | None:
    """What to say of a mean over a run; None if nothing need be said, or it is not known.

    Args:
        percent: as `LoadWatch` gives it.
        during: what was measured meanwhile.
        means: what follows from it.
    """
    if percent is None or percent <= BUSY_RUN_PERCENT:
        return None
    return f"Caution: other processes used {percent:.0f} % of the CPU during {during}: {means}"


def _used(process: "psutil.Process") -> float:
    """CPU seconds of a process and of its children that have ended; 0 if it has just gone itself."""
    import psutil

    try:
        t = process.cpu_times()
    except psutil.Error:
        return 0.0
    return t.user + t.system + t.children_user + t.children_system
