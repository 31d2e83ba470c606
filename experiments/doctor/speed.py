"""Measure the cost of a pass over a few rows relative to one row, and say what it means for trees.

A decoding pass reads every weight once, whether it is over one row or sixteen. As long as reading takes
longer than computing, more rows are nearly free; trees depend on this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

TREE_ROWS = 16
"""Rows of a medium-sized tree."""

WIDTH = 4096
MATRICES = {"cpu": 4, "cuda": 64}
"""Number of weight matrices: more than caches hold, but few enough to read quickly."""

REPEATS = 3

FREE_COST, HIGH_COST = 1.25, 3.0
"""Cost of 16 rows up to which trees are nearly free to verify, and from which they are expensive."""


@dataclass(frozen=True)
class Speed:
    """Milliseconds of passes by number of rows, through matrices too large for the processor's caches.

    `read_gb_s` are gigabytes (1e9) of weights per second in a pass over one row.
    """

    device: str
    dtype: str
    pass_ms: Mapping[int, float]
    read_gb_s: float

    def __str__(self) -> str:
        times = ", ".join(f"{ms:.1f} ms for {rows}" for rows, ms in self.pass_ms.items())
        return f"{times} rows; reads {self.read_gb_s:.0f} GB/s"


def measure_speed(device: str, dtype: str) -> Speed:
    """Time passes over 1 and 16 rows through matrices of 4096 by 4096, in turns."""
    import torch

    from treespec.experiments.measure.timing import in_turns, seconds_of
    from treespec.experiments.run.observers import synchronizer

    torch_dtype = getattr(torch, dtype)
    matrix = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
    matrix = matrix.mul_(WIDTH**-0.5).to(device, torch_dtype)
    weights = [matrix.clone() for _ in range(MATRICES[device])]

    def run(x: torch.Tensor) -> None:
        for weight in weights:
            x = torch.nn.functional.linear(x, weight)

    rows = {n: torch.ones(n, WIDTH, dtype=torch_dtype, device=device) for n in (1, TREE_ROWS)}
    wait = synchronizer(device)
    ways = {n: partial(seconds_of, partial(run, x), wait) for n, x in rows.items()}
    medians = {n: median(seconds) for n, seconds in in_turns(ways, REPEATS).items()}
    return Speed(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        dtype=dtype,
        pass_ms={n: round(1e3 * seconds, 3) for n, seconds in medians.items()},
        read_gb_s=round(len(weights) * matrix.nbytes / medians[1] / 1e9, 2),
    )


ADVICE = (
    "Which dtype and passes decode fastest depends on the models: models.dtype=fastest and passes=auto, "
    "the defaults, measure it with yours, and every report says what they chose."
)

TOO_BUSY = (
    "Other processes used the CPU while these were timed, so they say nothing about trees: try again when "
    "it is idle."
)


def meaning(speeds: Sequence[Speed], busy: bool) -> tuple[str, ...]:
    """What the times mean for trees, a sentence per device and dtype; nothing on a busy machine."""
    if not speeds:
        return ()
    return (TOO_BUSY,) if busy else (*map(_sentence, speeds), ADVICE)


def _sentence(speed: Speed) -> str:
    cost = speed.pass_ms[TREE_ROWS] / speed.pass_ms[1]
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
