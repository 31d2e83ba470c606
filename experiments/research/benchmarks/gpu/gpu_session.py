"""State that the parts of one run share: the device, files of measured cells, and the remaining time."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console

from treespec.errors import in_words
from treespec.experiments.measure.roofline import Peak, measured_peak, peak_of
from treespec.experiments.research.benchmarks.results_file import described, path_of
from treespec.files import write_whole


class Store:
    """The measured cells of one part, by key, in a file that is complete at every moment."""

    def __init__(self, benchmark: str, folder: Path, head: Mapping[str, Any]) -> None:
        self.path = path_of(benchmark, folder)
        self._head = described(benchmark) | dict(head)
        self.cells: dict[str, Any] = {}

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
    failures: list[str] = field(default_factory=list)
    """Failures of the kernel or of our own decoding, which make the command fail."""

    def __post_init__(self) -> None:
        """Find the device and its peaks, and start the clock."""
        self.device = torch.device("cpu" if self.dry else "cuda")
        self._start = time.monotonic()
        self.measured = measured_peak(self.device, tiny=self.dry)
        listed = None if self.dry else peak_of(torch.cuda.get_device_name(self.device))
        self.peak: Peak = listed or self.measured

    def deadline(self, share: float) -> float:
        """When this share of the run's minutes is over, in seconds of `time.monotonic`."""
        return self._start + 60 * self.minutes * share

    def store(self, part: str, **settings: Any) -> Store:
        """The store of a part."""
        head = {
            "dry": self.dry,
            "device": self._device_facts(),
            "peak": self.peak._asdict(),
            "measured_peak": self.measured._asdict(),
            "settings": settings,
        }
        return Store(f"gpu_{part}", self.folder, head)

    def each(self, part: str, cases: Sequence[Measured], deadline: float) -> Iterator[Measured]:
        """Yield the cases of a part until the time is over, and print the progress."""
        for done, case in enumerate(cases):
            if time.monotonic() >= deadline:
                self.say(f"{part}: out of time, {len(cases) - done} of {len(cases)} cases left")
                return
            yield case
            self.say(f"{part}: {case.key} ({done + 1} of {len(cases)})")

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
