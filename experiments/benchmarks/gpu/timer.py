"""Times of short device work: medians by device events, over inputs that are not in the cache.

Each call in a row of calls does the same work on other tensors. Together they are larger than the L2 cache,
so that no call finds its keys there, which in a model it would not either. Two figures are taken:

    with launch   events around each call as Python makes it: for small work this is the time of the host;
    device        the row captured as a CUDA graph and replayed: the time of the device, gaps between
                  kernels included, the host left out.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

__all__ = ["Timing", "sets_needed", "time_captured", "time_each"]

Call = Callable[[], object]

FACTOR = 2
"""The inputs together are at least so many times the L2 cache."""

FEWEST, MOST = 2, 64
SAMPLES = 3, 400
"""Samples of a median, at least and at most."""

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
        return FEWEST
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES
    return min(MOST, max(FEWEST, math.ceil(FACTOR * cache / bytes_of_one)))


def time_each(calls: Sequence[Call], device: torch.device, seconds: float) -> Timing:
    """The time of a call as it is made, launch included.

    Args:
        calls: the same work on different tensors.
        device: where it runs.
        seconds: about how long to measure.
    """
    if device.type != "cuda":
        count = _samples(_once(calls, device) / len(calls), seconds)
        return Timing.of([_clocked(calls[i % len(calls)]) for i in range(count)])
    for _ in range(WARM_UPS):
        _once(calls, device)
    count = _samples(_once(calls, device) / len(calls), seconds)
    events = [_pair() for _ in range(count)]
    for i, (start, end) in enumerate(events):
        start.record()
        calls[i % len(calls)]()
        end.record()
    torch.cuda.synchronize(device)
    return Timing.of([1e-3 * start.elapsed_time(end) for start, end in events])


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
    count = _samples(_once([graph.replay], device), seconds)
    events = [_pair() for _ in range(count)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize(device)
    return Timing.of([1e-3 * start.elapsed_time(end) / len(calls) for start, end in events])


def _samples(estimate: float, seconds: float) -> int:
    fewest, most = SAMPLES
    return min(most, max(fewest, int(seconds / max(estimate, 1e-7))))


def _once(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds of one round of all calls, the device's queue included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for call in calls:
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _clocked(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
