"""The observer that times the stages of decoding."""

import time
from collections.abc import Callable
from types import TracebackType

import torch

__all__ = ["StageTimer", "synchronizer"]


def synchronizer(device: torch.device | str) -> Callable[[], None]:
    """What to call before the clock is read, so that queued work of the device is finished."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


class StageTimer:
    """Seconds of each stage, one entry for each time that it ran.

    Args:
        synchronize: called before the clock is read.

    Example:
        >>> timer = StageTimer()
        >>> with timer.stage("draft"):
        ...     pass
        >>> len(timer.seconds["draft"])
        1
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self.synchronize = synchronize
        self.seconds: dict[str, list[float]] = {}

    def stage(self, name: str) -> "_Stage":
        """A context that lasts as long as the stage."""
        return _Stage(self.seconds.setdefault(name, []), self.synchronize)


class _Stage:
    def __init__(self, seconds: list[float], synchronize: Callable[[], None]) -> None:
        self._seconds, self._synchronize = seconds, synchronize

    def __enter__(self) -> None:
        self._synchronize()
        self._start = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._synchronize()
        self._seconds.append(time.perf_counter() - self._start)
