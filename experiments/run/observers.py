"""The observer that times the stages of decoding."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A context that lasts as long as the stage."""
        self.synchronize()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            self.seconds.setdefault(name, []).append(time.perf_counter() - start)
