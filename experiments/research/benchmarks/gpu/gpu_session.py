"""State that the parts of one run share: the device, files of measured cells, and the remaining time."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console

from treespec.errors import Unavailable, in_words
from treespec.experiments.measure.roofline import Peak, measured_peak, peak_of
from treespec.experiments.research.benchmarks.results_file import described, path_of
from treespec.experiments.run.meters.energy import EnergySource, find_gpu_energy
from treespec.files import write_whole

SAME = ("source_hash", "versions", "dry", "settings")
"""What must be equal for cells of an earlier run to count."""


class Store:
    """The measured cells of one part, by key, in a file that is complete at every moment.

    Cells that the same code has measured on this device with the same settings are kept, so that a run
    continues where the last one ended; those that failed are measured again.
    """

    def __init__(self, benchmark: str, folder: Path, head: Mapping[str, Any]) -> None:
        self.path = path_of(benchmark, folder)
        self._head = described(benchmark) | dict(head)
        self.cells: dict[str, Any] = self._held()

    def holds(self, key: str) -> bool:
        """Whether a case is measured: all its cells, whose keys begin with its key."""
        return any(cell == key or cell.startswith(f"{key} ") for cell in self.cells)

    def _held(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        held = json.loads(self.path.read_text(encoding="utf-8"))
        if any(held.get(name) != self._head.get(name) for name in SAME):
            return {}
        failed = {"error", "unavailable"}
        cells = held["cells"].items()
        return {key: cell for key, cell in cells if not any(map(cell.get, failed))}

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Add a cell and write the file."""
        self.cells[key] = dict(cell)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self._head | {"cells": self.cells}, indent=1) + "\n")


class Keyed(Protocol):
    """A case with a readable key."""

    @property
    def key(self) -> str: ...


Measured = TypeVar("Measured", bound=Keyed)


class BrokenDevice(RuntimeError):
    """The device no longer works for this process after an error, such as an illegal address."""


@dataclass
class Session:
    """One run of some parts; a dry one is a rehearsal over tiny shapes on the CPU."""

    dry: bool
    folder: Path
    minutes: float
    console: Console
    code_found: bool = False
    """Whether code that an earlier run compiled was there; then first passes take less time."""
    failures: list[str] = field(default_factory=list)
    """Failures of the kernel or of our own decoding, which make the command fail."""

    def __post_init__(self) -> None:
        """Find the device and its peaks, and start the clock."""
        self.device = torch.device("cpu" if self.dry else "cuda")
        self._start = time.monotonic()
        self.measured = measured_peak(self.device, tiny=self.dry)
        self.energy = _energy(self.device)
        listed = None if self.dry else peak_of(torch.cuda.get_device_name(self.device))
        self.peak: Peak = listed or self.measured

    def deadline(self, share: float) -> float:
        """When this share of the run's minutes is over, in seconds of `time.monotonic`."""
        return self._start + 60 * self.minutes * share

    def store(self, part: str, **settings: Any) -> Store:
        """The store of a part."""
        head = {
            "dry": self.dry,
            "code_found": self.code_found,
            "device": self._device_facts(),
            "peak": self.peak._asdict(),
            "measured_peak": self.measured._asdict(),
            "settings": settings,
        }
        return Store(f"gpu_{part}", self.folder, head)

    def each(
        self, part: str, cases: Sequence[Measured], deadline: float, store: Store | None = None
    ) -> Iterator[Measured]:
        """Yield the cases that a store lacks until the time is over, and print the progress."""
        todo = [case for case in cases if store is None or not store.holds(case.key)]
        if len(todo) < len(cases):
            self.say(f"{part}: {len(cases) - len(todo)} of {len(cases)} cases were measured before")
        for done, case in enumerate(todo):
            if time.monotonic() >= deadline:
                self.say(f"{part}: out of time, {len(todo) - done} of {len(cases)} cases left")
                return
            yield case
            self.say(f"{part}: {case.key} ({done + 1} of {len(todo)})")

    def fail(self, part: str, key: str, problem: str) -> None:
        """Record and print a failure that makes the command fail."""
        self.failures.append(f"{part}, {key}: {problem}")
        self.say(f"{part}: FAILED {self.failures[-1]}")

    def _device_facts(self) -> dict[str, Any]:
        if self.device.type != "cuda":
            return {}
        device = torch.cuda.get_device_properties(self.device)
        return {
            "capability": f"{device.major}.{device.minor}",
            "multiprocessors": device.multi_processor_count,
            "memory_gib": round(device.total_memory / 2**30, 1),
            "l2_mib": round(getattr(device, "L2_cache_size", 0) / 2**20, 1),
            "cuda": torch.version.cuda,
            **clocks(),
        }

    def say(self, text: str) -> None:
        """Print one line of progress."""
        self.console.print(text, highlight=False, markup=False)

    def recover(self, what: str) -> None:
        """After an error, free memory and check that the device still works."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.ones(8, device=self.device).sum().item()
        except RuntimeError as error:
            raise BrokenDevice(
                f"after {what} the device no longer responds ({in_words(error, what)}); what was measured "
                "before is in the files"
            ) from error


CLOCKS = ("clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem", "power.limit", "power.draw")


def clocks() -> dict[str, str]:
    """Clocks and power limit of the first GPU as they are now; empty where `nvidia-smi` does not say."""
    query = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader", "--id=0"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(CLOCKS, map(str.strip, told.stdout.split(",")), strict=False))


def _energy(device: torch.device) -> EnergySource | None:
    """The device's energy counter, if it can be read."""
    if device.type != "cuda":
        return None
    try:
        return find_gpu_energy([torch.cuda.current_device()])
    except Unavailable:
        return None
