"""State that the parts of one run share: the device, files of measured cells, and the remaining time."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console

from treespec.errors import in_words
from treespec.experiments.benchmarks.gpu.roofline import Peak, measured_peak, peak_of
from treespec.experiments.benchmarks.results_file import described, path_of
from treespec.files import write_whole

__all__ = ["BrokenDevice", "Deadline", "Session", "Store", "source_hash"]

ROOT = Path(__file__).resolve().parents[3]

KEPT_IF_EQUAL = ("source_hash", "versions", "hardware", "dry")


class Store:
    """The measured cells of one part, by key, in a file that is complete at every moment.

    A cell of an earlier run is kept if it was measured with the same code, versions and device. The code is
    identified by a hash of the sources that the part depends on. The git hash would not do: results that
    are written into the repository change git's state, and a copy without `.git` has none.

    Args:
        benchmark: name of the part.
        folder: folder of the file.
        sources: files and folders, relative to the repository's root, that the figures depend on.
        head: facts that are written next to the cells, such as `dry` and the device's peaks.
        fresh: discard the cells of an earlier run.
    """

    def __init__(
        self,
        benchmark: str,
        folder: Path,
        sources: Sequence[str],
        head: Mapping[str, Any],
        *,
        fresh: bool = False,
    ) -> None:
        self.path = path_of(benchmark, folder)
        self._head = described(benchmark) | {"source_hash": source_hash(sources), **head}
        self.cells: dict[str, Any] = {} if fresh else self._kept()
        self.kept = len(self.cells)
        """Number of cells taken from an earlier run."""

    def __contains__(self, key: str) -> bool:
        return key in self.cells

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Add a cell and write the file.

        Args:
            key: readable name of what was measured.
            cell: plain data.
        """
        self.cells[key] = dict(cell)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self._head | {"cells": self.cells}, indent=1) + "\n")

    def _kept(self) -> dict[str, Any]:
        try:
            before = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        same = all(before.get(name) == self._head[name] for name in KEPT_IF_EQUAL)
        return before.get("cells", {}) if same else {}


def source_hash(sources: Sequence[str], root: Path = ROOT) -> str:
    """A hash of the paths and contents of Python files.

    Args:
        sources: files, and folders that stand for all Python files in them.
        root: folder that the paths are relative to.
    """
    paths = [root / source for source in sources]
    files = {file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Keyed(Protocol):
    """A case with a readable key."""

    @property
    def key(self) -> str: ...


Measured = TypeVar("Measured", bound=Keyed)


class BrokenDevice(RuntimeError):
    """The device no longer works for this process after an error, such as an illegal address."""


@dataclass(frozen=True)
class Deadline:
    """A moment after which no new case is started.

    Args:
        at: the moment, in seconds of `clock`.
        clock: returns the current time in seconds.
    """

    at: float
    clock: Callable[[], float] = time.monotonic

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.at


@dataclass
class Session:
    """One run of some parts.

    Args:
        dry: whether the run is a rehearsal over tiny shapes on the CPU.
        folder: folder of the results.
        minutes: time for all parts together.
        fresh: discard the cells of earlier runs.
        console: console for messages.
    """

    dry: bool
    folder: Path
    minutes: float
    fresh: bool
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

    def deadline(self, share: float) -> Deadline:
        """The moment at which this share of the run's time has passed since its start."""
        return Deadline(self._start + 60 * self.minutes * share)

    def store(self, part: str, sources: tuple[str, ...], **settings: Any) -> Store:
        """The store of a part."""
        store = Store(
            f"gpu_{part}",
            self.folder,
            sources,
            {
                "dry": self.dry,
                "device": self._device_facts(),
                "peak": self.peak._asdict(),
                "measured_peak": self.measured._asdict(),
                "settings": settings,
            },
            fresh=self.fresh,
        )
        if store.kept:
            self.say(f"keeping {store.kept} cells of an earlier run: {store.path}")
        return store

    def each(self, part: str, cases: Sequence[Measured], deadline: Deadline) -> Iterator[Measured]:
        """Yield the cases of a part until the time is over, and print the progress."""
        for done, case in enumerate(cases):
            if deadline.passed:
                self.say(f"{part}: out of time, {len(cases) - done} of {len(cases)} cases left")
                return
            yield case
            self.say(f"{part}: {case.key} ({done + 1} of {len(cases)})")

    def fail(self, part: str, key: str, problem: str) -> None:
        """Record and print a failure that makes the command fail."""
        self.failures.append(f"{part}, {key}: {problem}")
        self.say(f"{part}: FAILED {self.failures[-1]}")

    def _device_facts(self) -> dict[str, Any]:
        """Properties of the device besides its name."""
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
        """After an error, free memory and check that the device still works.

        Raises:
            BrokenDevice: if the device no longer works.
        """
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.ones(8, device=self.device).sum().item()
        except RuntimeError as error:
            raise BrokenDevice(
                f"after {what} the device no longer responds ({in_words(error, what)}); all measured cells "
                "are saved: repeat the same command to continue after them"
            ) from error
