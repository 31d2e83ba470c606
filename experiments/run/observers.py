"""Clocks for decoding, and the observer that times its stages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """Seconds since 1970, from a clock that never jumps within a process."""
    return _EPOCH + time.perf_counter()


def synchronizer(device: torch.device | str) -> Callable[[], None]:
    """A function to call before reading the clock; it waits until the device's queued work is done."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


class HostClock:
    """A clock for work that is done when the call returns: marks moments, and measures the time between."""

    def mark(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        """Do nothing: marks are comparable at once."""

    def between(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """A clock for work that a device does later: marks are events in its queue and do not wait."""

    def __init__(self, device: torch.device | str, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda

    def mark(self) -> Any:
        """Record an event that the device reaches when all work queued before it is done."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        self._cuda.synchronize(self._device)

    def between(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) / 1e3


def clock_of(device: torch.device | str) -> HostClock | CudaClock:
    """The clock for work of this device."""
    return CudaClock(device) if torch.device(device).type == "cuda" else HostClock()


class StageTimer:
    """An observer that records the seconds of each stage, one entry each time the stage runs.

    On CUDA, stages are marked by events, and the host waits for the device only when `seconds` is read.

    Args:
        device: the device that does the work.

    Example:
        >>> timer = StageTimer()
        >>> with timer.stage("draft"):
        ...     pass
        >>> len(timer.seconds["draft"])
        1
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.clock = clock_of(device)
        self._marks: list[tuple[str, Any, Any]] = []
        self._seconds: dict[str, list[float]] = {}

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of all stages that have ended, by name; waits for the device."""
        if self._marks:
            self.clock.settle()
            for name, start, end in self._marks:
                self._seconds.setdefault(name, []).append(self.clock.between(start, end))
            self._marks.clear()
        return self._seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self.clock.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self.clock.mark()))
