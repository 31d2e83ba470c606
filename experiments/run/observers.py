"""The clocks that time decoding, and the observer that times its stages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

__all__ = ["CudaClock", "HostClock", "StageTimer", "now", "synchronizer"]

_EPOCH = time.time() - time.perf_counter()


def now() -> float:
    """Seconds since 1970, by a clock that does not jump within a process."""
    return _EPOCH + time.perf_counter()


def synchronizer(device: torch.device | str) -> Callable[[], None]:
    """What to call before the clock is read, so that queued work of the device is finished."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


class Clock(Protocol):
    """Marks moments, and says later how far they are apart."""

    def mark(self) -> Any:
        """This moment."""
        ...

    def settle(self) -> None:
        """Wait until marks can be compared."""
        ...

    def between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another."""
        ...


class HostClock:
    """For work that is done when the call returns."""

    def mark(self) -> float:
        """The time."""
        return time.perf_counter()

    def settle(self) -> None:
        """Nothing to wait for."""

    def between(self, start: float, end: float) -> float:
        """Their difference."""
        return end - start


class CudaClock:
    """For work that a device does later: marks are events in its queue, and none waits for it.

    Args:
        device: of the work.
        cuda: `torch.cuda`, or what stands for it.
    """

    def __init__(self, device: torch.device | str, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda

    def mark(self) -> Any:
        """An event that the device passes when all that was queued before is done."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(self._device)

    def between(self, start: Any, end: Any) -> float:
        """By the device's own clock."""
        return start.elapsed_time(end) / 1e3


class StageTimer:
    """Seconds of each stage, one entry for each time that it ran.

    On CUDA stages are marked by events, so that the device is waited for once, when `seconds` is read.

    Args:
        device: that the work is done on.

    Example:
        >>> timer = StageTimer()
        >>> with timer.stage("draft"):
        ...     pass
        >>> len(timer.seconds["draft"])
        1
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        cuda = torch.device(device).type == "cuda"
        self.clock: Clock = CudaClock(device) if cuda else HostClock()
        self._marks: list[tuple[str, Any, Any]] = []
        self._seconds: dict[str, list[float]] = {}

    @property
    def seconds(self) -> dict[str, list[float]]:
        """By stage, of all that has ended; waits for the device."""
        if self._marks:
            self.clock.settle()
            for name, start, end in self._marks:
                self._seconds.setdefault(name, []).append(self.clock.between(start, end))
            self._marks.clear()
        return self._seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A context that lasts as long as the stage."""
        start = self.clock.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self.clock.mark()))
