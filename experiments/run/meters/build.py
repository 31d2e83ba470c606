"""Make the meters that a config asks for, as far as this machine supports them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from treespec.errors import in_words
from treespec.experiments.run.meters.energy import EnergyMeter, EnergySource, Rapl, find_gpu_energy
from treespec.experiments.run.meters.memory import CudaMemory, ResidentMemory
from treespec.experiments.run.meters.meter import Meter, Meters

__all__ = ["cuda_devices", "make_meters"]

MEMORY = ("rss_bytes", "peak_rss_bytes", "peak_cuda_bytes")
ENERGY = ("cpu_energy_j", "cpu_energy_net_j", "gpu_energy_j", "gpu_energy_net_j")
NOT_ASKED = "the config's `meters` does not ask for it"


def make_meters(kinds: Iterable[str], devices: Sequence[torch.device]) -> Meters:
    """Make meters; where energy can be read, measure the idle power for `energy.IDLE_SECONDS`.

    Args:
        kinds: `memory`, `energy`.
        devices: the CUDA devices that hold models.
    """
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
