"""The interface of a meter, a group of meters that are read together, and those that a config asks for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from treespec.errors import in_words
from treespec.experiments.run.meters.energy import EnergyMeter, EnergySource, Rapl, find_gpu_energy
from treespec.experiments.run.meters.memory import CudaMemory, ResidentMemory

MEMORY = ("rss_bytes", "peak_rss_bytes", "peak_cuda_bytes")
ENERGY = ("cpu_energy_j", "cpu_energy_net_j", "gpu_energy_j", "gpu_energy_net_j")
COLUMNS = (*MEMORY, *ENERGY)
"""The columns of `records.PromptRow` that meters fill."""

NOT_ASKED = "the config's `meters` does not ask for it"


class Meter(Protocol):
    """Measures quantities over one prompt."""

    sources: dict[str, str]
    unavailable: dict[str, str]

    def start(self) -> None:
        """Begin to measure; called just before the prompt."""

    def stop(self) -> Mapping[str, float | int | None]:
        """Values by column, null where the reading is invalid; called just after the prompt."""
        ...


class Meters:
    """Several meters that measure the same prompts. A meter that fails never fails the run.

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


def make_meters(kinds: Iterable[str], devices: Sequence[torch.device]) -> Meters:
    """Make meters; where energy can be read, measure the idle power for `energy.IDLE_SECONDS`."""
    kinds, made = set(kinds), list[Meter]()
    unavailable: dict[str, str] = {}
    idle: dict[str, float | None] = {}
    if "memory" in kinds:
        made += [ResidentMemory(), CudaMemory([str(device) for device in devices], torch.cuda)]
    else:
        unavailable |= dict.fromkeys(MEMORY, NOT_ASKED)
    if "energy" in kinds:
        finds: list[tuple[Any, Callable[[], EnergySource]]] = [
            ("cpu", Rapl.find),
            ("gpu", lambda: find_gpu_energy([device.index or 0 for device in devices])),
        ]
        for part, find in finds:
            try:
                meter = EnergyMeter(part, find())
                meter.read_idle()
                made.append(meter)
                idle[part] = meter.idle_w
            except Exception as error:  # a counter must not stop a run
                names = f"{part}_energy_j", f"{part}_energy_net_j"
                unavailable |= dict.fromkeys(names, in_words(error, "its reading"))
    else:
        unavailable |= dict.fromkeys(ENERGY, NOT_ASKED)
    return Meters(made, unavailable, idle)


def cuda_devices(models: Iterable[torch.nn.Module]) -> list[torch.device]:
    """The CUDA devices that hold parameters of these models, in order."""
    devices = {p.device for model in models for p in model.parameters() if p.device.type == "cuda"}
    return sorted(devices, key=lambda device: device.index or 0)
