"""The interface of a meter, and a group of meters that are read together."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from treespec.errors import in_words

__all__ = ["COLUMNS", "Meter", "Meters"]

COLUMNS = (
    "rss_bytes",
    "peak_rss_bytes",
    "peak_cuda_bytes",
    "cpu_energy_j",
    "cpu_energy_net_j",
    "gpu_energy_j",
    "gpu_energy_net_j",
)
"""The columns of `records.PromptRow` that meters fill."""


class Meter(Protocol):
    """Measures quantities over one prompt.

    Attributes:
        sources: what each column is read from.
        unavailable: why a column is always null on this machine.
    """

    sources: dict[str, str]
    unavailable: dict[str, str]

    def start(self) -> None:
        """Begin to measure; called just before the prompt."""

    def stop(self) -> Mapping[str, float | int | None]:
        """Values by column, null where the reading is invalid; called just after the prompt."""
        ...


class Meters:
    """Several meters that measure the same prompts. A meter that fails never fails the run.

    Args:
        meters: the meters, in the order in which they are started; they are stopped in reverse.
        unavailable: why columns without a meter are null.
        idle_w: watts of the idle machine by part, None where unknown.

    Example:
        >>> meters = Meters([])
        >>> meters.start()
        >>> meters.stop()["rss_bytes"] is None
        True
    """

    def __init__(
        self,
        meters: Sequence[Meter],
        unavailable: Mapping[str, str] | None = None,
        idle_w: Mapping[str, float | None] | None = None,
    ) -> None:
        self._meters = tuple(meters)
        self._unavailable = dict(unavailable or {})
        self._idle_w = dict(idle_w or {})

    def start(self) -> None:
        """Start all meters that have not failed."""
        for meter in self._meters:
            try:
                meter.start()
            except Exception as error:
                self._drop(meter, error)

    def stop(self) -> dict[str, Any]:
        """Stop the meters, and return the value of every column."""
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        for meter in reversed(self._meters):
            try:
                values |= meter.stop()
            except Exception as error:
                self._drop(meter, error)
        return values

    def about(self) -> dict[str, Any]:
        """`meters` of the manifest: sources by column, why other columns are null, and the idle power."""
        reasons = dict(self._unavailable)
        sources: dict[str, str] = {}
        for meter in self._meters:
            sources |= meter.sources
            reasons |= meter.unavailable
        return {
            "sources": {name: sources[name] for name in COLUMNS if name in sources},
            "unavailable": {name: reasons[name] for name in COLUMNS if name in reasons},
            "idle_w": dict(self._idle_w),
        }

    def _drop(self, meter: Meter, error: Exception) -> None:
        """Stop using a meter that failed; the manifest records why its columns may be null."""
        self._meters = tuple(m for m in self._meters if m is not meter)
        why = f"reading it failed during the run: {in_words(error, 'its reading')}"
        self._unavailable |= dict.fromkeys([*meter.sources, *meter.unavailable], why)
