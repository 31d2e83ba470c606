"""Measure how much of the machine other processes use: times measured beside them are not reliable.

`busy_percent` watches for a moment before a run. `LoadWatch` reports on a whole run afterwards, from
counters that the kernel keeps anyway; reading them takes a few milliseconds and delays nothing.
"""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

BUSY_PERCENT = 15
"""Above this use by other processes, a caution is shown before a run; a momentary reading is noisy."""

BUSY_RUN_PERCENT = 10

WATCH_S = 0.25

LEAST_S = 1.0
"""Shortest time to report on: counters advance in steps of a hundredth of a second."""

LARGEST_GAP_SHARE = 0.1
"""Largest share by which counters may disagree with the clock; beyond it they describe another machine."""


class Counters(NamedTuple):
    """CPU times in seconds, counted from an arbitrary moment.

    Args:
        clock: wall time.
        cores: number of cores that this process may use.
        idle: idle time summed over these cores.
        busy: busy time summed over these cores, including time that the host of a virtual machine stole.
        ours: CPU time of this process and its descendants, on any core.
    """

    clock: float
    cores: int
    idle: float
    busy: float
    ours: float


def allowed_cores() -> list[int]:
    """Numbers of the cores that this process may use; all cores where the system does not limit them."""
    limits = hasattr(psutil.Process, "cpu_affinity")
    return (limits and psutil.Process().cpu_affinity()) or list(range(psutil.cpu_count() or 1))


def busy_percent() -> float:
    process = psutil.Process()
    process.cpu_percent()
    total = psutil.cpu_percent(interval=WATCH_S)
    return round(max(0.0, total - process.cpu_percent() / (psutil.cpu_count() or 1)), 1)


def read_counters() -> Counters | None:
    """Read the counters; None where the system has none per core (all but Linux).

    All processes under the same torchrun count as ours, because they decode the same run.
    """
    if not psutil.LINUX:
        return None
    try:
        cores = allowed_cores()
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
    if len(times) != len(
        cores
    ):  # counters are not numbered like the cores, so they cannot be assigned
        return None
    return Counters(time.monotonic(), len(cores), idle, busy, ours)


class LoadWatch:
    """Measures, from its creation on, how much other processes use the cores that this one may use."""

    def __init__(self, read: Callable[[], Counters | None] | None = None) -> None:
        self._read = read or read_counters
        self._first = self._read()

    def busy_percent(self) -> float | None:
        """Mean use by other processes since the watch was made, in percent of these cores.

        Returns:
            None if unknown: no counters, less than a second, or counters that contradict the clock or this
            process's own time (as in a container that sees another machine's counters).
        """
        first, now = self._first, self._read()
        if first is None or now is None or first.cores != now.cores:
            return None
        clock, _, idle, busy, ours = (b - a for a, b in zip(first, now, strict=True))
        available = clock * now.cores
        gap = max(abs(idle + busy - available), ours - busy)
        if clock < LEAST_S or gap > LARGEST_GAP_SHARE * available:
            return None
        return round(100 * max(0.0, busy - ours) / (idle + busy), 1)


PASSIVE = (
    ""
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
    else ". On a shared CPU, OMP_WAIT_POLICY=PASSIVE in the environment limits the damage"
)
"""What to do about a busy machine; empty where it is done."""

NOT_RELIABLE = "its times are not reliable. Measure again on a quiet machine."

IN_TURNS = (
    "tokens per second were measured under this load. Methods took turns, so ratios between methods allow "
    "for it as far as their intervals say."
)


def busy_sentence(
    percent: float | None, during: str = "the run", means: str = NOT_RELIABLE
) -> str | None:
    """A caution about a busy machine; None if it was quiet enough, or if its use is unknown."""
    if percent is None or percent <= BUSY_RUN_PERCENT:
        return None
    return f"Caution: other processes used {percent:.0f} % of the CPU during {during}: {means}"


def _used(process: psutil.Process) -> float:
    """CPU seconds of a process and of its children that have ended; 0 if the process has just ended."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system
