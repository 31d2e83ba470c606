"""Measure the cost of a pass over a few rows relative to one row, and say what it means for trees.

A decoding pass reads every weight once, whether it is over one row or sixteen. As long as reading takes
longer than computing, more rows are nearly free; trees depend on this.
"""

import time
from collections.abc import Sequence

import numpy as np

from treespec.experiments.doctor.findings import Speed

__all__ = ["TREE_ROWS", "meaning", "measure_speed"]

TREE_ROWS = 16
"""Rows of a medium-sized tree."""

MANY_ROWS = {"cpu": 64, "cuda": 1024}
"""Rows of a pass that is limited by computing, not reading."""

WIDTH = 4096
MATRICES = {"cpu": 4, "cuda": 64}
"""Number of weight matrices: more than caches hold, but few enough to read quickly."""

REPEATS = 3

FREE_COST, DEAR_COST = 1.25, 3.0
"""Cost of 16 rows up to which trees are nearly free to verify, and from which they are expensive."""


def measure_speed(device: str, dtype: str, matrices: int | None = None) -> Speed:
    """Time passes over 1, 16 and many rows through matrices of 4096 by 4096.

    Args:
        device: `cpu` or `cuda`.
        dtype: `float32` or `bfloat16`.
        matrices: number of matrices; by default more than caches hold.
    """
    import torch

    from treespec.experiments.run.observers import synchronizer

    synchronize = synchronizer(device)
    torch_dtype = getattr(torch, dtype)
    sizes = (1, TREE_ROWS, MANY_ROWS[device])
    count = matrices or MATRICES[device]
    matrix_bytes = WIDTH * WIDTH * torch_dtype.itemsize
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(WIDTH, WIDTH, generator=generator).mul_(WIDTH**-0.5)
    matrix = matrix.to(device, torch_dtype)
    weights = [matrix.clone() for _ in range(count)]

    def run(rows: int) -> float:
        x = torch.ones(rows, WIDTH, dtype=torch_dtype, device=device)
        synchronize()
        start = time.perf_counter()
        for weight in weights:
            x = torch.nn.functional.linear(x, weight)
        synchronize()
        return time.perf_counter() - start

    # Sizes take turns, because machines drift. The first round warms up.
    rounds = [[run(rows) for rows in sizes] for _ in range(REPEATS + 1)]
    medians = dict(zip(sizes, np.median(rounds[1:], axis=0).tolist(), strict=True))
    return Speed(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=dtype,
        weights_mib=count * matrix_bytes / 2**20,
        pass_ms={rows: round(1e3 * median, 3) for rows, median in medians.items()},
        read_gb_s=round(count * matrix_bytes / medians[1] / 1e9, 2),
        gflop_s=round(2 * count * WIDTH * WIDTH * sizes[-1] / medians[sizes[-1]] / 1e9, 1),
    )


def meaning(speeds: Sequence[Speed]) -> tuple[str, ...]:
    """What the times mean for trees: a sentence per device and dtype, and advice on the dtype."""
    sentences = [_sentence(speed) for speed in speeds]
    for device in dict.fromkeys(speed.device for speed in speeds):
        on_device = [speed for speed in speeds if speed.device == device]
        best = min(on_device, key=lambda speed: speed.pass_ms[TREE_ROWS])
        if len(on_device) > 1:
            sentences.append(
                f"Of these, {best.dtype} verifies {TREE_ROWS} nodes fastest on {device}: set "
                f"models.dtype={best.dtype} in configs."
            )
    return tuple(sentences)


def _sentence(speed: Speed) -> str:
    cost = speed.cost(TREE_ROWS)
    measured = f"{speed.device}, {speed.dtype}: verifying {TREE_ROWS} nodes costs {cost:.2f} times one node"
    if cost <= FREE_COST:
        return f"{measured}: wide trees are nearly free to verify; their cost is drafting them."
    needed = (
        f"to beat plain decoding, a tree of {TREE_ROWS} nodes must yield more than {cost:.1f} tokens per "
        "step, plus the cost of drafting it"
    )
    if cost < DEAR_COST:
        return f"{measured}: {needed}."
    return f"{measured}, because computing is the limit here: {needed}. Chains and small trees pay first."
