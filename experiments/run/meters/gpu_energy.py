"""Energy of NVIDIA GPUs: by zeus where it is installed (optional), else by NVML itself."""

import importlib
from collections.abc import Sequence
from typing import Any

from treespec.errors import in_words
from treespec.experiments.run.meters.energy import EnergySource
from treespec.experiments.run.meters.meter import Unavailable

__all__ = ["Nvml", "Zeus", "find_gpu_energy"]

NEITHER = "neither zeus nor nvidia-ml-py is installed: pip install nvidia-ml-py"


class Nvml:
    """The GPUs' own counters of energy (Volta and later), millijoules since the driver was loaded.

    A counter moves every 20 to 100 ms: a prompt in which it does not move has no reading.

    Args:
        nvml: the module `pynvml`, or what stands for it.
        uuids: of the GPUs, as NVML spells them: `GPU-...`.

    Raises:
        Unavailable: if NVML or a GPU does not tell its energy.
    """

    def __init__(self, nvml: Any, uuids: Sequence[str]) -> None:
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            self._before = self._read()
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML: {error}") from None
        self.name = f"NVML, {len(self._handles)} GPU{'s' * (len(self._handles) > 1)}"

    def begin(self) -> None:
        """Remember where the counters stand."""
        self._before = self._read()

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`; None if no counter moved, or one was set back."""
        changes = [after - before for after, before in zip(self._read(), self._before, strict=True)]
        return sum(changes) / 1e3 if min(changes) > 0 else None

    def _read(self) -> list[int]:
        return [int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(h)) for h in self._handles]


class Zeus:
    """Energy by `zeus.monitor.ZeusMonitor`, which also reads GPUs without such a counter.

    Args:
        monitor: `zeus.monitor`, or what stands for it.
        indices: of the GPUs, as torch counts them.

    Raises:
        Unavailable: if zeus cannot read them.
    """

    def __init__(self, monitor: Any, indices: Sequence[int]) -> None:
        try:
            self._monitor = monitor.ZeusMonitor(gpu_indices=list(indices), cpu_indices=[])
        except Exception as error:  # zeus has no base class for what can go wrong here
            raise Unavailable(f"zeus: {in_words(error, 'its start')}") from None
        self.name = f"zeus, {len(indices)} GPU{'s' * (len(indices) > 1)}"
        self._open = False

    def begin(self) -> None:
        """Open a window. A prompt that failed may have left one open."""
        if self._open:
            self._monitor.end_window("prompt", sync_execution=False, cancel=True)
        self._monitor.begin_window("prompt", sync_execution=False)
        self._open = True

    def end(self, seconds: float) -> float | None:
        """Joules of all GPUs in the window; None if it was too short for a reading."""
        window = self._monitor.end_window("prompt", sync_execution=False)
        self._open = False
        values = list(window.gpu_energy.values())
        return float(sum(values)) if values and min(values) > 0 else None


def find_gpu_energy(indices: Sequence[int]) -> EnergySource:
    """The source of the energy of these GPUs.

    Args:
        indices: as torch counts them.

    Raises:
        Unavailable: if there is none.
    """
    if not indices:
        raise Unavailable("no model is on a CUDA device")
    reasons = []
    try:
        return Zeus(importlib.import_module("zeus.monitor"), indices)
    except ImportError:
        pass
    except Unavailable as error:
        reasons.append(str(error))
    try:
        return Nvml(importlib.import_module("pynvml"), [_uuid(index) for index in indices])
    except ImportError:
        reasons = reasons or [NEITHER]
    except Unavailable as error:
        reasons.append(str(error))
    raise Unavailable("; ".join(reasons))


def _uuid(index: int) -> str:
    """What NVML calls a GPU; its own numbers do not know CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"
