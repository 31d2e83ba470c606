"""The roofline: the least time of a pass by the bytes that it reads and the operations that it computes.

Peaks are those of the data sheets. No program reaches them (a plain copy gets about 0.9 of the bandwidth),
so a fraction of this roofline is a strict figure that does not depend on who measures. The peaks of devices
that are not listed are measured by a copy and a matrix product, and marked as measured.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from treespec.experiments.measure.timing import seconds_of
from treespec.experiments.run.observers import synchronizer
from treespec.models.quantised import stored_bytes


class Heads(NamedTuple):
    """Query heads, key/value heads and the dimension of each."""

    q: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        return self.q // self.kv

    def __str__(self) -> str:
        return f"{self.q}/{self.kv}/{self.dim}"


class Peak(NamedTuple):
    """The peak performance of a device.

    Args:
        bandwidth: bandwidth of its memory in bytes per second.
        flops: operations per second of bfloat16 matrix products accumulated in float32, without sparsity.
        source: origin of both figures.
    """

    bandwidth: float
    flops: float
    source: str


class Floor(NamedTuple):
    """The two terms of the roofline, in microseconds."""

    bytes_us: float
    flops_us: float

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.flops_us)

    @property
    def bound(self) -> str:
        return "memory" if self.bytes_us >= self.flops_us else "compute"


SHEET = "NVIDIA data sheet"

ROUNDS, CALLS = 7, 3
"""Rounds of a measurement of a peak, and calls per round."""

# Words that a device's name must contain (the first match counts); TB/s; dense TFLOP/s in bfloat16.
DATA_SHEETS: tuple[tuple[tuple[str, ...], float, float], ...] = (
    (("H200", "NVL"), 4.8, 835),
    (("H200",), 4.8, 989),
    (("H100", "NVL"), 3.9, 835),
    (("H100", "PCIe"), 2.0, 756),
    (("H100", "HBM3"), 3.35, 989),
    (("A100", "SXM4", "80GB"), 2.039, 312),
    (("A100", "PCIe", "80GB"), 1.935, 312),
    (("A100", "40GB"), 1.555, 312),
    (("L40S",), 0.864, 362),
    (("L4",), 0.3, 121),
)


def peak_of(device_name: str) -> Peak | None:
    """The peaks of a device by its name in PyTorch, or None if it is not listed.

    A part of a device (MIG) and a chip that shares its board (GH200) have other peaks and are not listed.

    Example:
        >>> peak_of("NVIDIA H200").bandwidth
        4800000000000.0
        >>> peak_of("NVIDIA H200 MIG 1g.18gb") is None
        True
    """
    words = device_name.lower().replace("-", " ").split()
    if "mig" in words:
        return None
    listed = (
        Peak(terabytes * 1e12, teraflops * 1e12, SHEET)
        for wanted, terabytes, teraflops in DATA_SHEETS
        if all(word.lower() in words for word in wanted)
    )
    return next(listed, None)


def attention_floor(heads: Heads, rows: int, keys: int, itemsize: int, peak: Peak) -> Floor:
    """The roofline of one layer's attention over one sequence.

    Keys, values and queries are read once, and outputs are written once. Every row counts as attending to
    every key: a tree hides at most `rows` of them.

    Args:
        heads: heads of the layer.
        rows: number of nodes.
        keys: number of keys: prefix and nodes.
        itemsize: bytes per element.
        peak: peaks of the device.

    Example:
        >>> floor = attention_floor(Heads(32, 8, 128), 64, 16384, 2, Peak(4.8e12, 989e12, ""))
        >>> round(floor.bytes_us, 1), round(floor.flops_us, 1), floor.bound
        (14.2, 17.4, 'compute')
    """
    moved = 2 * heads.dim * itemsize * (keys * heads.kv + rows * heads.q)
    flops = 4 * rows * heads.q * keys * heads.dim
    return Floor(1e6 * moved / peak.bandwidth, 1e6 * flops / peak.flops)


def weights_read(model: Any) -> list[torch.Tensor]:
    """The parameters that a pass reads: all but an embedding table that is not shared with the head.

    Such a table is only looked up.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return [weight for weight in model.parameters() if table is head or weight is not table]


def pass_bytes(model: Any, rows_cached: float) -> float:
    """Bytes that one pass over one sequence must read: stored weights (`weights_read`) and cache.

    `rows_cached` are committed tokens and nodes.
    """
    config, itemsize = model.config, model.get_output_embeddings().weight.itemsize
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    row = 2 * config.num_key_value_heads * dim * itemsize
    cache = rows_cached * config.num_hidden_layers * row
    return cache + sum(map(stored_bytes, weights_read(model)))


def measured_peak(device: torch.device, *, tiny: bool = False) -> Peak:
    """The peaks that a copy and a matrix product reach.

    A `tiny` measurement, for the rehearsal, copies only kilobytes.
    """
    count, side = (1 << 14, 64) if tiny else (1 << 29, 8192)
    source = torch.ones(count, dtype=torch.int16, device=device)
    target = torch.empty_like(source)
    # Products of equal numbers are faster: fewer bits change, and the chip's clock stays higher.
    left = torch.randn(side, side, device=device).bfloat16()
    wait = synchronizer(device)
    copy = fastest(lambda: target.copy_(source), wait)
    product = fastest(lambda: left @ left, wait)
    return Peak(
        2 * source.nbytes / copy, 2 * side**3 / product, "measured: a copy, a matrix product"
    )


def fastest(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Seconds per call in the fastest of several rounds."""
    rounds = (seconds_of(lambda: [work() for _ in range(CALLS)], wait) for _ in range(ROUNDS))
    return min(rounds) / CALLS
