"""Energy of a whole prompt: as the counters say, and less what the idle machine takes in that time."""

import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

__all__ = ["IDLE_SECONDS", "EnergyMeter", "EnergySource"]

IDLE_SECONDS = 2.0
"""For how long the idle machine is read before the run."""


class EnergySource(Protocol):
    """A counter of energy.

    Attributes:
        name: what is read, for the manifest.
    """

    name: str

    def begin(self) -> None:
        """Remember where the counter stands."""

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`; None if `seconds` are too few or too many to tell."""
        ...


class EnergyMeter:
    """Energy of the CPU or of GPUs around a prompt, its prefill included.

    A counter belongs to a device, not to a process: what others do at the same time is in it. The idle
    power is read once, with the models loaded, and taken off in the `net` column, which holds the energy
    that decoding added.

    Args:
        part: `cpu` or `gpu`.
        source: of the energy.
        clock: in seconds.
    """

    def __init__(
        self,
        part: Literal["cpu", "gpu"],
        source: EnergySource,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.part, self._source, self._clock = part, source, clock
        self._raw, self._net = f"{part}_energy_j", f"{part}_energy_net_j"
        self.sources: dict[str, str] = {self._raw: source.name}
        self.unavailable: dict[str, str] = {self._net: "the idle power was not read"}
        self.idle_w: float | None = None
        self._begun = 0.0

    def read_idle(
        self, seconds: float = IDLE_SECONDS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Read the power of the machine while this process sleeps.

        Args:
            seconds: for how long.
            sleep: what waits.
        """
        self.start()
        sleep(seconds)
        elapsed = self._clock() - self._begun
        joules = self._source.end(elapsed)
        if joules is not None:
            self.idle_w = joules / elapsed
            self.unavailable.pop(self._net, None)
            self.sources[self._net] = f"less {self.idle_w:.3g} W, read idle before the run"

    def start(self) -> None:
        """Begin."""
        self._source.begin()
        self._begun = self._clock()

    def stop(self) -> Mapping[str, float | None]:
        """Joules, raw and net. The net one can be negative where decoding adds less than the noise."""
        elapsed = self._clock() - self._begun
        joules = self._source.end(elapsed)
        if joules is None or self.idle_w is None:
            return {self._raw: joules}
        return {self._raw: joules, self._net: joules - self.idle_w * elapsed}
