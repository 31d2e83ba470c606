"""Measure the cost of a pass over a few rows relative to one row, and say what it means for trees.

A decoding pass reads every weight once, whether it is over one row or sixteen. As long as reading takes
longer than computing, more rows are nearly free; trees depend on this.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

from treespec.experiments.doctor.findings import Speed

TREE_ROWS = 16
"""Rows of a medium-sized tree."""

MANY_ROWS = {"cpu": 64, "cuda": 1024}
"""Rows of a pass that is limited by computing, not reading."""

WIDTH = 4096
MATRICES = {"cpu": 4, "cuda": 64}
"""Number of weight matrices: more than caches hold, but few enough to read quickly."""

REPEATS = 3

FREE_COST, HIGH_COST = 1.25, 3.0
"""Cost of 16 rows up to which trees are nearly free to verify, and from which they are expensive."""


def measure_speed(device: str, dtype: str, matrices: int | None = None) -> Speed:
    """Time passes over 1, 16 and many rows through matrices of 4096 by 4096, in turns."""
    import torch

    from treespec.experiments.measure.timing import in_turns, seconds_of
    from treespec.experiments.run.observers import synchronizer

    torch_dtype = getattr(torch, dtype)
    sizes = (1, TREE_ROWS, MANY_ROWS[device])
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(WIDTH, WIDTH, generator=generator).mul_(WIDTH**-0.5)
    matrix = matrix.to(device, torch_dtype)
    weights = [matrix.clone() for _ in range(matrices or MATRICES[device])]
    weights_bytes = sum(weight.nbytes for weight in weights)

    def run(x: torch.Tensor) -> None:
        for weight in weights:
            x = torch.nn.functional.linear(x, weight)

    rows = {n: torch.ones(n, WIDTH, dtype=torch_dtype, device=device) for n in sizes}
    wait = synchronizer(device)
    ways = {n: partial(seconds_of, partial(run, x), wait) for n, x in rows.items()}
    medians = {n: median(seconds) for n, seconds in in_turns(ways, REPEATS).items()}
    return Speed(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=dtype,
        weights_mib=weights_bytes / 2**20,
        pass_ms={n: round(1e3 * seconds, 3) for n, seconds in medians.items()},
        read_gb_s=round(weights_bytes / medians[1] / 1e9, 2),
        gflop_s=round(2 * len(weights) * WIDTH**2 * sizes[-1] / medians[sizes[-1]] / 1e9, 1),
    )


def meaning(speeds: Sequence[Speed]) -> tuple[str, ...]:
    """What the times mean for trees: a sentence per device and dtype, and advice on the dtype."""
    sentences = [_sentence(speed) for speed in speeds]
    for device in dict.fromkeys(speed.device for speed in speeds):
        on_device = [speed for speed in speeds if speed.device == device]
        best = min(on_device, key=lambda speed: speed.pass_ms[TREE_ROWS])
        if len(on_device) > 1:
            sentences.append(
                f"Of these, {best.dtype} verifies {TREE_ROWS} nodes fastest on {device}; "
                "models.dtype=fastest measures it with your models."
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
    if cost < HIGH_COST:
        return f"{measured}: {needed}."
    return f"{measured}, because computing is the limit here: {needed}. Chains and small trees pay first."
