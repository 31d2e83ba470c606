"""Time that is given: until when a part of the work may take."""

import time


class Deadline:
    """Says when the time is up.

    Args:
        at: the time, on the clock of `time.monotonic`.
    """

    def __init__(self, at: float) -> None:
        self.at = at

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.at - time.monotonic()

    def __call__(self) -> bool:
        return self.left <= 0


class WholeParts(Deadline):
    """Says to stop when another part would end too late: one that takes as long as the last one.

    Args:
        at: the time, on the clock of `time.monotonic`; the first part begins now.
    """

    def __init__(self, at: float) -> None:
        super().__init__(at)
        self._asked = time.monotonic()

    def __call__(self) -> bool:
        took = time.monotonic() - self._asked
        self._asked += took
        return self.left < took
