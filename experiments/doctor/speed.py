"""What a pass over a few rows costs beside one over one row, and what that means for trees here.

Decoding reads every weight once for each pass, whether the pass is over one row or over sixteen. As long
as reading takes longer than computing, more rows are nearly free: that is what trees live on.
"""

import statistics
import time
from collections.abc import Sequence

from treespec.experiments.doctor.findings import Speed

__all__ = ["TREE_ROWS", "meaning", "measure_speed"]

TREE_ROWS = 16
"""Rows of a tree of medium size."""

MANY_ROWS = {"cpu": 64, "cuda": 1024}
"""Rows of a pass that computes more than it reads."""

WIDTH = 4096
MATRICES = {"cpu": 4, "cuda": 64}
"""Number of weight matrices: more than caches hold, but few enough to be read quickly."""

REPEATS = 3

FREE_COST, DEAR_COST = 1.25, 3.0
"""Cost of 16 rows up to which trees are nearly free to verify, and from which on they are expensive."""


def measure_speed(device: str, dtype: str, matrices: int | None = None) -> Speed:
    """Time passes over 1, 16 and many rows through matrices of 4096 by 4096.

    Args:
        device: `cpu` or `cuda`.
        dtype: `float32` or `bfloat16`.
        matrices: how many; by default more than caches hold.
    """
    import torch

    from treespec.experiments.run.observers import synchronizer

    synchronize = synchronizer(device)
    kind = getattr(torch, dtype)
    sizes = (1, TREE_ROWS, MANY_ROWS[device])
    count, each = matrices or MATRICES[device], WIDTH * WIDTH * kind.itemsize
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(WIDTH, WIDTH, generator=generator).mul_(WIDTH**-0.5).to(device, kind)
    weights = [first.clone() for _ in range(count)]

    def run(rows: int) -> float:
        x = torch.ones(rows, WIDTH, dtype=kind, device=device)
        synchronize()
        start = time.perf_counter()
        for weight in weights:
            x = torch.nn.functional.linear(x, weight)
        synchronize()
        return time.perf_counter() - start

    seconds: dict[int, list[float]] = {rows: [] for rows in sizes}
    for turn in range(
        REPEATS + 1
    ):  # sizes take turns, because machines drift; the first turn warms up
        for rows in sizes:
            spent = run(rows)
            if turn:
                seconds[rows].append(spent)
    middle = {rows: statistics.median(spans) for rows, spans in seconds.items()}
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return Speed(
        device=name,
        dtype=dtype,
        weights_mib=count * each / 2**20,
        pass_ms={rows: round(1e3 * median, 3) for rows, median in middle.items()},
        read_gb_s=round(count * each / middle[1] / 1e9, 2),
        gflop_s=round(2 * count * WIDTH * WIDTH * sizes[-1] / middle[sizes[-1]] / 1e9, 1),
    )


def meaning(speeds: Sequence[Speed]) -> tuple[str, ...]:
    """What the times mean for trees here, a sentence for each device and dtype, and one of advice."""
    said = [_of_one(speed) for speed in speeds]
    for device in dict.fromkeys(speed.device for speed in speeds):
        on_device = [speed for speed in speeds if speed.device == device]
        best = min(on_device, key=lambda speed: speed.pass_ms[TREE_ROWS])
        if len(on_device) > 1:
            said.append(
                f"Of these, {best.dtype} verifies {TREE_ROWS} nodes fastest on {device}: "
                f"models.dtype={best.dtype} in configs."
            )
    return tuple(said)


def _of_one(speed: Speed) -> str:
    cost = speed.cost(TREE_ROWS)
    measured = (
        f"{speed.device}, {speed.dtype}: verifying {TREE_ROWS} nodes costs {cost:.2f} times one"
    )
    if cost <= FREE_COST:
        return (
            f"{measured}: wide trees are nearly free to verify, what they cost is their drafting."
        )
    needed = (
        f"a tree of {TREE_ROWS} nodes has to yield more than {cost:.1f} tokens a step, and what its "
        "drafting takes, to beat plain decoding"
    )
    if cost < DEAR_COST:
        return f"{measured}: {needed}."
    return f"{measured}, so it is computing that limits here: {needed}; chains and small trees pay first."
