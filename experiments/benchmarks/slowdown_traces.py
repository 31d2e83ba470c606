"""Record how much slower this machine becomes beside neighbours, for simulations of the estimator.

    python -m treespec.experiments.benchmarks.slowdown_traces FOLDER [--seconds 40] [--threads 2]

A fixed product of matrices of about 3 ms is computed again and again, alone and beside each of
`neighbours`, and its times are written into FOLDER: `quiet.npz`, `bursts.npz`, `steady.npz`, `drift.npz`.
Each holds `at`, the middle of each piece of work in seconds from the start, and `seconds`, that it took.
As many threads compute it as models use, by default one for each core. `stalls.npz` is made from
`quiet.npz`: every two seconds, by chance, a pause of about 50 ms, since no neighbour makes a machine pause
at will.
"""

import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console

from treespec.experiments.benchmarks.neighbours import Neighbour, beside
from treespec.experiments.report.terminal import say

__all__ = ["record", "with_stalls"]

PIECE = 3e-3
Times = NDArray[np.float64]


def piece_of_work(seconds: float = PIECE) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices whose product takes about so long at best: a weight, and a few rows as models verify."""
    weight = torch.rand(4096, 1024)
    for rows in (4, 8, 16, 32, 64, 128, 256, 512):
        matrix = torch.rand(rows, 4096)
        if min(record(matrix, weight, repeats=10)[1]) >= seconds / 1.5:
            break
    return matrix, weight


def record(
    matrix: torch.Tensor, weight: torch.Tensor, *, repeats: int = 0, seconds: float = 0.0
) -> tuple[Times, Times]:
    """Compute a product again and again.

    Args:
        matrix: of the product.
        weight: of the product.
        repeats: at least.
        seconds: at least.

    Returns:
        Middles of the pieces of work since the start, and their times, in seconds.
    """
    start = time.perf_counter()
    marks = [start]
    while len(marks) <= repeats or marks[-1] < start + seconds:
        matrix @ weight
        marks.append(time.perf_counter())
    edges = np.array(marks) - start
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def with_stalls(at: Times, seconds: Times, seed: int = 0) -> tuple[Times, Times]:
    """The same trace, in which the machine pauses for about 50 ms every two seconds, by chance."""
    rng = np.random.default_rng(seed)
    paused = rng.random(len(at)) < seconds / 2
    pauses = paused * np.clip(np.exp(rng.normal(np.log(0.05), 0.7, len(at))), 0.01, 0.3)
    longer = seconds + pauses
    return np.cumsum(longer) - longer / 2, longer


def main(
    folder: Annotated[Path, typer.Argument(help="for the traces")],
    seconds: Annotated[float, typer.Option(min=1, help="of each trace")] = 40.0,
    threads: Annotated[int, typer.Option(min=0, help="that work; 0: one for each core")] = 0,
) -> None:
    """Record a trace of each kind of machine, and say how slow they were."""
    console = Console()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    folder.mkdir(parents=True, exist_ok=True)
    work = piece_of_work()
    traces: dict[str, tuple[Times, Times]] = {}
    for name in ("quiet", *Neighbour):
        with nullcontext() if name == "quiet" else beside(Neighbour(name), seconds + 5):
            traces[str(name)] = record(*work, seconds=seconds)
    traces["stalls"] = with_stalls(*traces["quiet"])
    for name, (at, spent) in traces.items():
        np.savez_compressed(
            folder / f"{name}.npz", at=at.astype(np.float32), seconds=spent.astype(np.float32)
        )
        best, usual, slow = 1e3 * np.quantile(spent, [0.05, 0.5, 0.95])
        say(console, f"{name}: 5, 50, 95 % of {len(at)}: {best:.2f}, {usual:.2f}, {slow:.2f} ms")


if __name__ == "__main__":
    typer.run(main)
