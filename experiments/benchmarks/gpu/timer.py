"""Times of short device work: medians by device events, over inputs that are not in the cache.

Each call in a row of calls does the same work on other tensors. Together they are larger than the L2 cache,
so that no call finds its keys there, which in a model it would not either. Two figures are taken:

    with launch   events around each call as Python makes it: for small work this is the time of the host;
    device        the row captured as a CUDA graph and replayed: the time of the device, gaps between
                  kernels included, the host left out.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from treespec.experiments.benchmarks.timing import seconds_of
from treespec.experiments.run.observers import synchronizer

__all__ = ["Timing", "sets_needed", "time_captured", "time_each"]

Call = Callable[[], object]

CACHES_FILLED = 2
"""The inputs together are at least so many times the L2 cache."""

FEWEST_SETS, MOST_SETS = 2, 64
FEWEST_SAMPLES, MOST_SAMPLES = 3, 400
"""Of a median."""

WARM_UPS = 3
L2_BYTES = 50 << 20
"""Where torch does not tell."""


class Timing(NamedTuple):
    """The time of one call, in microseconds.

    Args:
        median_us: over the samples.
        low_us: their 10th percentile.
        high_us: their 90th percentile.
        samples: how many there were.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """Of samples in seconds.

        Example:
            >>> Timing.of([1e-6, 2e-6, 9e-6]).median_us
            2.0
        """
        ordered = sorted(1e6 * value for value in seconds)
        low, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.1, 0.9))
        median = statistics.median(ordered)
        return cls(round(median, 3), round(low, 3), round(high, 3), len(ordered))


def sets_needed(bytes_of_one: int, device: torch.device) -> int:
    """How many sets of inputs take turns.

    Args:
        bytes_of_one: keys and values of one set.
        device: whose cache they must exceed.
    """
    if device.type != "cuda":
        return FEWEST_SETS
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES
    return min(MOST_SETS, max(FEWEST_SETS, math.ceil(CACHES_FILLED * cache / bytes_of_one)))


def time_each(calls: Sequence[Call], device: torch.device, seconds: float) -> Timing:
    """The time of a call as it is made, launch included.

    Args:
        calls: the same work on different tensors.
        device: where it runs.
        seconds: about how long to measure.
    """
    if device.type == "cuda":
        for _ in range(WARM_UPS):
            _round_s(calls, device)
    count = _samples(_round_s(calls, device) / len(calls), seconds)
    turns = [calls[i % len(calls)] for i in range(count)]
    if device.type == "cuda":
        return Timing.of(_event_seconds(turns, device))
    return Timing.of([seconds_of(call) for call in turns])


def time_captured(calls: Sequence[Call], device: torch.device, seconds: float) -> Timing | None:
    """The time of a call in a captured graph of all of them; None where there are no graphs.

    Args:
        calls: have run before, so that nothing is compiled or allocated for the first time.
        device: where they run.
        seconds: about how long to measure.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    count = _samples(_round_s([graph.replay], device), seconds)
    replays = _event_seconds([graph.replay] * count, device)
    return Timing.of([replay / len(calls) for replay in replays])


def _samples(estimate: float, seconds: float) -> int:
    return min(MOST_SAMPLES, max(FEWEST_SAMPLES, int(seconds / max(estimate, 1e-7))))


def _round_s(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds of one round of all calls, the device's queue included."""
    return seconds_of(lambda: [call() for call in calls], synchronizer(device))


def _event_seconds(calls: Sequence[Call], device: torch.device) -> list[float]:
    """Seconds between events before and after each call."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
    for call, (start, end) in zip(calls, events, strict=True):
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return [1e-3 * start.elapsed_time(end) for start, end in events]
