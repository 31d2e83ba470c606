"""Memory while a prompt is decoded: of the process, and on CUDA devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

PROCESS = Path("/proc/self")


class ResidentMemory:
    """Resident memory of this process: at the end of a prompt, and its peak during the prompt.

    The peak is the kernel's own (`VmHWM`), reset before every prompt by writing 5 to `clear_refs`. If it
    cannot be reset, no peak is reported, since a peak since the process began says nothing about a prompt.
    It includes the models and everything else that the process holds.
    """

    def __init__(self, process: Path = PROCESS) -> None:
        self._process = process
        self.sources: dict[str, str] = {"rss_bytes": "psutil"}
        self.unavailable: dict[str, str] = {}
        try:
            self._reset()
            self._peak()
        except (OSError, ValueError) as error:
            self.unavailable["peak_rss_bytes"] = (
                f"this system does not let a process reset its peak before each prompt: {error}"
            )
        else:
            self.sources["peak_rss_bytes"] = "VmHWM, reset before every prompt"

    def start(self) -> None:
        if "peak_rss_bytes" in self.sources:
            self._reset()

    def stop(self) -> Mapping[str, int | None]:
        resident = int(psutil.Process().memory_info().rss)
        if "peak_rss_bytes" not in self.sources:
            return {"rss_bytes": resident}
        # The kernel updates counts per thread in batches, so the peak may lag by some pages.
        return {"rss_bytes": resident, "peak_rss_bytes": max(self._peak(), resident)}

    def _reset(self) -> None:
        (self._process / "clear_refs").write_text("5")

    def _peak(self) -> int:
        for line in (self._process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ValueError("its /proc status has no VmHWM")


class CudaMemory:
    """Peak memory that torch allocated on CUDA devices while a prompt was decoded, summed over devices."""

    def __init__(self, devices: Sequence[str], cuda: Any) -> None:
        self._devices, self._cuda = tuple(devices), cuda
        self.sources: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        if devices:
            self.sources["peak_cuda_bytes"] = "torch.cuda.max_memory_allocated"
        else:
            self.unavailable["peak_cuda_bytes"] = "no model is on a CUDA device"

    def start(self) -> None:
        for device in self._devices:
            self._cuda.reset_peak_memory_stats(device)

    def stop(self) -> Mapping[str, int | None]:
        if not self._devices:
            return {}
        return {"peak_cuda_bytes": sum(map(self._cuda.max_memory_allocated, self._devices))}
