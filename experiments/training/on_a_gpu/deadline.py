"""Time that is given: until when a part of the work may take."""

import time

__all__ = ["Deadline"]


class Deadline:
    """Says when to stop, so that a part of the work ends in time.

    What was done since it was asked last is taken as what will be done until it is asked next.

    Args:
        at: the time, on the clock of `time.monotonic`.
    """

    def __init__(self, at: float) -> None:
        self.at, self._asked = at, time.monotonic()

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.at - time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        next_ends, self._asked = 2 * now - self._asked, now
        return next_ends > self.at
