"""Record how much slower this machine becomes beside neighbours, for simulations of the estimator.

    python -m treespec.experiments.benchmarks.slowdown_traces FOLDER [--seconds 40] [--threads 2]

A fixed matrix product of about 3 ms is computed repeatedly, alone and beside each of the `neighbours`, and
its times are written into FOLDER: `quiet.npz`, `bursts.npz`, `steady.npz`, `drift.npz`. Each file holds
`at`, the middle of each piece of work in seconds from the start, and `seconds`, its duration. The product
uses as many threads as models do, by default one per core. `stalls.npz` is derived from `quiet.npz`: pauses
of about 50 ms are added at random, every two seconds on average, since no neighbour can make a machine
pause at will.
"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from treespec.experiments.benchmarks.neighbours import Neighbour, beside
from treespec.experiments.benchmarks.results_file import print_parts
from treespec.experiments.records.machine_load import allowed_cores

__all__ = ["record", "with_stalls"]

PIECE = 3e-3
Times = NDArray[np.float64]


def piece_of_work(seconds: float = PIECE) -> tuple[torch.Tensor, torch.Tensor]:
    """A few rows, as in verification, and a weight, whose product takes about this long at best."""
    weight = torch.rand(4096, 1024)
    for rows in (4, 8, 16, 32, 64, 128, 256, 512):
        matrix = torch.rand(rows, 4096)
        if min(record(matrix, weight, repeats=10)[1]) >= seconds / 1.5:
            break
    return matrix, weight


def record(
    matrix: torch.Tensor, weight: torch.Tensor, *, repeats: int = 0, seconds: float = 0.0
) -> tuple[Times, Times]:
    """Compute a product repeatedly and time it.

    Args:
        matrix: left factor.
        weight: right factor.
        repeats: minimum number of products.
        seconds: minimum total time.

    Returns:
        The middle of each piece of work since the start, and its duration, in seconds.
    """
    start = time.perf_counter()
    marks = [start]
    while len(marks) <= repeats or marks[-1] < start + seconds:
        matrix @ weight
        marks.append(time.perf_counter())
    edges = np.array(marks) - start
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def with_stalls(at: Times, seconds: Times, seed: int = 0) -> tuple[Times, Times]:
    """The trace with random pauses of about 50 ms, every two seconds on average."""
    rng = np.random.default_rng(seed)
    paused = rng.random(len(at)) < seconds / 2
    pauses = paused * np.clip(np.exp(rng.normal(np.log(0.05), 0.7, len(at))), 0.01, 0.3)
    longer = seconds + pauses
    return np.cumsum(longer) - longer / 2, longer


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the traces.")],
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each trace.")] = 40.0,
    threads: Annotated[int, typer.Option(min=0, help="Threads that work; 0 for one per core.")] = 0,
) -> None:
    """Record a trace of each kind of machine, and print how slow they were."""
    torch.set_num_threads(threads or len(allowed_cores()))
    folder.mkdir(parents=True, exist_ok=True)
    work = piece_of_work()
    traces: dict[str, tuple[Times, Times]] = {}
    for kind in (None, *Neighbour):
        with beside(kind, seconds + 5):
            traces[str(kind or "quiet")] = record(*work, seconds=seconds)
    traces["stalls"] = with_stalls(*traces["quiet"])
    for name, (at, spent) in traces.items():
        np.savez_compressed(
            folder / f"{name}.npz", at=at.astype(np.float32), seconds=spent.astype(np.float32)
        )
        best, usual, slow = 1e3 * np.quantile(spent, [0.05, 0.5, 0.95])
        print_parts(f"{name}: 5, 50, 95 % of {len(at)}: {best:.2f}, {usual:.2f}, {slow:.2f} ms")


if __name__ == "__main__":
    typer.run(main)
