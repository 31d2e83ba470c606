"""Time short work on the device: medians over inputs that are not in the cache.

Each call in a sequence does the same work on different tensors. Together the tensors are larger than the L2
cache, so no call finds its keys there, as in a model. Two figures are measured:

    with launch   events around each call as Python makes it; for small work this is the time of the host
    device        the sequence captured as a CUDA graph and replayed: the time of the device, including gaps
                  between kernels, without the host. A graph holds at least `FEWEST_CAPTURED` calls, so that
                  its own start counts little: about 14 us by a fit of times of an H100 in graphs of 2 to 25
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from treespec.experiments.measure.timing import seconds_of
from treespec.experiments.run.observers import synchronizer

Call = Callable[[], object]

CACHES_FILLED = 2
"""All inputs together are at least this many times the L2 cache."""

FEWEST_SETS, MOST_SETS = 2, 64
FEWEST_SAMPLES, MOST_SAMPLES = 3, 400
"""Minimum and maximum number of samples of a median."""

FEWEST_CAPTURED = 32
"""Smallest number of calls in a captured graph."""

WARM_UPS = 3
L2_BYTES = 50 << 20
"""Assumed size of the L2 cache where PyTorch does not report it."""


class Timing(NamedTuple):
    """The time of one call, in microseconds: median, 10th and 90th percentile of the samples."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """The timing of samples in seconds."""
        ordered = sorted(1e6 * value for value in seconds)
        low, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.1, 0.9))
        return cls(
            round(statistics.median(ordered), 3), round(low, 3), round(high, 3), len(ordered)
        )


def sets_needed(bytes_of_one: int, device: torch.device) -> int:
    """The number of input sets that take turns, so that together they exceed the device's cache."""
    if device.type != "cuda":
        return FEWEST_SETS
    cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES
    return min(MOST_SETS, max(FEWEST_SETS, math.ceil(CACHES_FILLED * cache / bytes_of_one)))


def time_each(calls: Sequence[Call], device: torch.device, seconds: float) -> Timing:
    """The time of a call, including its launch; the measurement takes about so many `seconds`."""
    if device.type == "cuda":
        for _ in range(WARM_UPS):
            _round_s(calls, device)
    count = _samples(_round_s(calls, device) / len(calls), seconds)
    turns = [calls[i % len(calls)] for i in range(count)]
    if device.type == "cuda":
        return Timing.of(event_seconds(turns, device))
    return Timing.of([seconds_of(call) for call in turns])


def time_captured(calls: Sequence[Call], device: torch.device, seconds: float) -> Timing | None:
    """The time of a call in a captured graph of all calls; None on devices without graphs.

    The calls have run before, so nothing is compiled or allocated for the first time.
    """
    if device.type != "cuda":
        return None
    graph, count = captured(calls, device)
    replays = _samples(_round_s([graph.replay], device), seconds)
    times = event_seconds([graph.replay] * replays, device)
    return Timing.of([replay / count for replay in times])


def captured(calls: Sequence[Call], device: torch.device) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of all calls, several times if they are few, replayed once; and the number of calls in it."""
    torch.cuda.synchronize(device)
    calls = [*calls] * math.ceil(FEWEST_CAPTURED / len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return graph, len(calls)


def _samples(estimate: float, seconds: float) -> int:
    return min(MOST_SAMPLES, max(FEWEST_SAMPLES, int(seconds / max(estimate, 1e-7))))


def _round_s(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds of one round of all calls, including the device's queue."""
    return seconds_of(lambda: [call() for call in calls], synchronizer(device))


def event_seconds(calls: Sequence[Call], device: torch.device) -> list[float]:
    """Seconds between events before and after each call."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
    for call, (start, end) in zip(calls, events, strict=True):
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return [1e-3 * start.elapsed_time(end) for start, end in events]
