"""Processes that load the machine while a run is measured, as other users of the machine do.

    python -m treespec.experiments.research.benchmarks.neighbours {bursts,steady,drift} --seconds N

- `bursts`: one process that works for 0.7 s of every 2 s;
- `steady`: one process per core, all working all the time;
- `drift`: one process whose share of a core rises from zero to one, in slices of 20 ms.

They end when their time is over or the process that started them is gone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore
from typing import Annotated

import numpy as np
import typer

from treespec.experiments.records.machine_load import allowed_cores

BURST, PERIOD = 0.7, 2.0
LONGEST_START_S = 30.0
"""Maximum time until a process of a neighbour starts to work."""

LONGEST_STAY_S = 3600.0
"""Maximum stay of a neighbour that is stopped at the end of a run; longer than any run."""

SLICE = 0.02


class Neighbour(StrEnum):
    """How a neighbour uses the machine."""

    BURSTS = "bursts"
    STEADY = "steady"
    DRIFT = "drift"


def busy_at(kind: Neighbour, second: float, seconds: float) -> bool:
    """Whether a process of this kind of neighbour is working at a given time.

    Args:
        kind: kind of neighbour.
        second: seconds since its start.
        seconds: seconds that it stays in total.

    Example:
        >>> [busy_at(Neighbour.BURSTS, second, 60) for second in (0.1, 0.8, 2.1)]
        [True, False, True]
    """
    if kind is Neighbour.BURSTS:
        return second % PERIOD < BURST
    if kind is Neighbour.DRIFT:
        return second % SLICE < SLICE * second / seconds
    return True


def _spin(kind: Neighbour, seconds: float, parent: int, working: Semaphore) -> None:
    values = np.ones((64, 64), np.float32)
    working.release()
    start = time.monotonic()
    while (second := time.monotonic() - start) < seconds and os.getppid() == parent:
        if busy_at(kind, second, seconds):
            values = values @ values * np.float32(1 / 64)
        else:
            time.sleep(0.001)


@contextmanager
def beside(kind: Neighbour | None, seconds: float = LONGEST_STAY_S) -> Iterator[None]:
    """Let a neighbour work while the block runs, from its first line to its last.

    Args:
        kind: kind of neighbour; None for a quiet machine.
        seconds: maximum time that it stays; `drift` reaches its peak then.

    Raises:
        RuntimeError: if a process did not start in time, or if the block took longer than `seconds`, so
            that its end ran without the neighbour.
    """
    count = {None: 0, Neighbour.STEADY: len(allowed_cores())}.get(kind, 1)
    spawn = get_context("spawn")
    working = spawn.Semaphore(
        0
    )  # the measurement must not overlap with the imports of these processes
    processes = [
        spawn.Process(target=_spin, args=(kind, seconds, os.getpid(), working), daemon=True)
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            if not working.acquire(timeout=LONGEST_START_S):
                raise RuntimeError(
                    f"a neighbour ({kind}) did not start within {LONGEST_START_S:g} s"
                )
        yield
        if not all(process.is_alive() for process in processes):
            raise RuntimeError(
                f"the neighbour ({kind}) stayed for {seconds:.0f} s, but the measurement beside it took "
                "longer, so its end ran without the neighbour: let the neighbour stay longer"
            )
    finally:
        for process in processes:
            process.terminate()
            process.join()


def main(
    kind: Annotated[Neighbour, typer.Argument(help="How to use the machine.")],
    seconds: Annotated[float, typer.Option(min=0, help="For how long, in seconds.")] = 60.0,
) -> None:
    """Use the machine as a neighbour does."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers load numpy
    with beside(kind, seconds + 1):  # longer than the block, as `beside` requires
        time.sleep(seconds)


if __name__ == "__main__":
    typer.run(main)
