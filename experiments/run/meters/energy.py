"""Energy of a whole prompt: as the counters report it, and net of what the idle machine would have used.

Counters: for CPU packages and memory RAPL, as Linux exposes it in /sys/class/powercap; for NVIDIA GPUs
NVML.
"""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from treespec.errors import Unavailable

IDLE_SECONDS = 2.0
"""Seconds for which the idle power is measured before the run."""


class EnergySource(Protocol):
    """An energy counter.

    Its `name` says in the manifest what is read.
    """

    name: str

    def begin(self) -> None:
        """Remember the counter's value."""

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`; None if `seconds` is too short or too long for a valid reading."""
        ...


class EnergyMeter:
    """Measures the energy of the CPU or of GPUs over a prompt, including its prefill.

    A counter belongs to a device, not to a process: it includes what other processes use meanwhile. The
    idle power is measured once, with the models loaded. The `net` column subtracts it, and so holds the
    energy that decoding added.
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
        """Measure the machine's power while this process sleeps."""
        self.start()
        sleep(seconds)
        elapsed = self._clock() - self._begun
        joules = self._source.end(elapsed)
        if joules is not None:
            self.idle_w = joules / elapsed
            self.unavailable.pop(self._net, None)
            self.sources[self._net] = f"less {self.idle_w:.3g} W, read idle before the run"

    def start(self) -> None:
        self._source.begin()
        self._begun = self._clock()

    def stop(self) -> Mapping[str, float | None]:
        """Joules, raw and net. Net can be negative if decoding adds less than the noise."""
        elapsed = self._clock() - self._begun
        joules = self._source.end(elapsed)
        if joules is None or self.idle_w is None:
            return {self._raw: joules}
        return {self._raw: joules, self._net: joules - self.idle_w * elapsed}


ROOT = Path("/sys/class/powercap")

MOST_WATTS = 1000.0
"""An upper bound on the power of a domain. A reading is invalid if a counter could have run through its
whole range at this power."""


@dataclass(frozen=True)
class Domain:
    """A RAPL counter.

    It starts from 0 again after `range_uj` microjoules.
    """

    path: Path
    name: str
    range_uj: int

    def read(self) -> int:
        """The counter's value in microjoules."""
        return int((self.path / "energy_uj").read_text())


class Rapl:
    """The sum of all CPU packages, and of memory where it has counters of its own.

    `core` and `uncore` are parts of a package, `psys` contains packages, and `intel-rapl-mmio` shows the
    same counters again, so none of these is added.
    """

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)
        self.name = f"RAPL: {', '.join(domain.name for domain in domains)}"
        self._before: list[int] = []

    @classmethod
    def find(cls, root: Path = ROOT) -> Self:
        domains = []
        for path in sorted(root.glob("intel-rapl:*")):
            try:
                name = (path / "name").read_text().strip()
                if not name.startswith("package") and name != "dram":
                    continue
                domain = Domain(path, name, int((path / "max_energy_range_uj").read_text()))
                domain.read()
            except PermissionError:
                raise Unavailable(
                    f"only root can read {path}/energy_uj: sudo chmod a+r {root}/*/energy_uj"
                ) from None
            except (OSError, ValueError) as error:
                raise Unavailable(f"{path}: {error}") from None
            domains.append(domain)
        if not any(domain.name.startswith("package") for domain in domains):
            raise Unavailable(f"no RAPL counter of a CPU package in {root}")
        return cls(domains)

    def begin(self) -> None:
        self._before = [domain.read() for domain in self._domains]

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`, correct if a counter wrapped around once; None after too long a time."""
        total = 0
        for domain, before in zip(self._domains, self._before, strict=True):
            if seconds * MOST_WATTS * 1e6 >= domain.range_uj:
                return None
            change = domain.read() - before
            total += change if change >= 0 else change + domain.range_uj
        return total / 1e6


class Nvml:
    """The GPUs' own energy counters (Volta and later), in millijoules since the driver was loaded.

    A counter is updated every 20 to 100 ms. A prompt during which it does not change has no reading.

    UUIDs are spelled as NVML does: `GPU-...`.
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
        self._before = self._read()

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`; None if a counter did not change, or was reset."""
        changes = [after - before for after, before in zip(self._read(), self._before, strict=True)]
        return sum(changes) / 1e3 if min(changes) > 0 else None

    def _read(self) -> list[int]:
        energy = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return [int(energy(handle)) for handle in self._handles]


def find_gpu_energy(indices: Sequence[int]) -> EnergySource:
    """The energy counters of these GPUs, by torch's numbering."""
    if not indices:
        raise Unavailable("no model is on a CUDA device")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise Unavailable("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    return Nvml(nvml, [_uuid(index) for index in indices])


def _uuid(index: int) -> str:
    """NVML's UUID of a GPU; NVML's indices ignore CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"
