"""What the parts of one run share: the device, the folder, and the time that is left."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console

from treespec.errors import in_words
from treespec.experiments.benchmarks.gpu.roofline import Peak, measured_peak, peak_of
from treespec.experiments.benchmarks.gpu.store import Store

__all__ = ["BrokenDevice", "Deadline", "Session"]


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
