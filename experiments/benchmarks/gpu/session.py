"""What the parts of one run share: the device, files of what was measured, the time that is left."""

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
from treespec.whole_file import write_whole

__all__ = ["BrokenDevice", "Deadline", "Session", "Store", "source_hash"]

ROOT = Path(__file__).resolve().parents[3]

KEPT_IF_EQUAL = ("source_hash", "versions", "hardware", "dry")


class Store:
    """The measured cells of one part, by key, in a file that is whole at every moment.

    A cell of an earlier run is kept if it was measured by the same code, versions and device. The code is
    known by a hash of the sources that the part rests on: results that are written into the repository
    change what git says of it, and a copy without `.git` says nothing.

    Args:
        benchmark: name of the part.
        folder: of the file.
        sources: files and folders, from the repository's root, that decide what the figures mean.
        head: what is written beside the cells, such as `dry` and the device's peaks.
        fresh: forget what an earlier run measured.
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
        """Cells of an earlier run."""

    def __contains__(self, key: str) -> bool:
        return key in self.cells

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a cell down.

        Args:
            key: says what was measured, for a person too.
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
    """A hash of Python files, by their paths and what is in them.

    Args:
        sources: files, and folders that stand for all Python files in them.
        root: what the paths start from.
    """
    files = set[Path]()
    for source in sources:
        path = root / source
        files |= set(path.rglob("*.py")) if path.is_dir() else {path}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Keyed(Protocol):
    """What is measured, under a name for files and people."""

    @property
    def key(self) -> str: ...


Measured = TypeVar("Measured", bound=Keyed)


class BrokenDevice(RuntimeError):
    """After an error the device does nothing more for this process (an illegal address, say)."""


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing new is begun.

    Args:
        at: by `clock`.
        clock: seconds.
    """

    at: float
    clock: Callable[[], float] = time.monotonic

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.clock() >= self.at


@dataclass
class Session:
    """One run of some parts.

    Args:
        dry: a rehearsal over tiny shapes on the CPU.
        folder: of the results.
        minutes: for all parts together.
        fresh: forget what an earlier run measured.
        console: what is said goes there.
    """

    dry: bool
    folder: Path
    minutes: float
    fresh: bool
    console: Console
    failures: list[str] = field(default_factory=list)
    """What must not have failed: the kernel, and our own decoding."""

    def __post_init__(self) -> None:
        """Find the device and its peaks; the clock starts."""
        self.device = torch.device("cpu" if self.dry else "cuda")
        self._start = time.monotonic()
        self.measured = measured_peak(self.device, tiny=self.dry)
        name = "" if self.dry else torch.cuda.get_device_name(self.device)
        self.peak: Peak = peak_of(name) or self.measured

    def deadline(self, share: float) -> Deadline:
        """When this share of the run's time is over, counted from its beginning."""
        return Deadline(self._start + 60 * self.minutes * share)

    def store(self, part: str, sources: tuple[str, ...], **settings: Any) -> Store:
        """The file of a part."""
        head: Mapping[str, Any] = {
            "dry": self.dry,
            "device": self._device_facts(),
            "peak": self.peak._asdict(),
            "measured_peak": self.measured._asdict(),
            "settings": settings,
        }
        store = Store(f"gpu_{part}", self.folder, sources, head, fresh=self.fresh)
        if store.kept:
            self.say(f"{store.kept} cells of an earlier run are kept: {store.path}")
        return store

    def each(self, part: str, cases: Sequence[Measured], deadline: Deadline) -> Iterator[Measured]:
        """The cases of a part one after another, until the time is over; says how far it is."""
        for done, case in enumerate(cases):
            if deadline.passed:
                left = len(cases) - done
                self.say(f"{part}: the time is over, {left} of {len(cases)} cases left")
                return
            yield case
            self.say(f"{part}: {case.key} ({done + 1} of {len(cases)})")

    def fail(self, part: str, key: str, problem: str) -> None:
        """Note and say that something failed which must not."""
        self.failures.append(f"{part}, {key}: {problem}")
        self.say(f"{part}: FAILED {self.failures[-1]}")

    def _device_facts(self) -> dict[str, Any]:
        """What the device says of itself, beside its name."""
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
        """One line for the person who waits."""
        self.console.print(text, highlight=False, markup=False)

    def recover(self, what: str) -> None:
        """After an error: free memory, and see that the device still works.

        Raises:
            BrokenDevice: if it does not.
        """
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.ones(8, device=self.device).sum().item()
        except RuntimeError as error:
            raise BrokenDevice(
                f"after {what} the device answers nothing more ({in_words(error, what)}); "
                "what was measured is written, and the same command goes on behind it"
            ) from error
