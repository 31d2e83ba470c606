"""Processes that take the machine away from a run, as other users of it do.

    python -m treespec.experiments.benchmarks.neighbours {bursts,steady,drift} --seconds N

- `bursts`: one process that works for 0.7 s of every 2 s;
- `steady`: a process for each core, which always work;
- `drift`: a process whose share of a core rises from nothing to all of it, in slices of 20 ms.

They end by themselves when their time is over or the process that started them is gone.
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

__all__ = ["Neighbour", "beside", "busy_at"]

BURST, PERIOD = 0.7, 2.0
LONGEST_START_S = 30.0
"""Within which a process of a neighbour works."""

SLICE = 0.02


class Neighbour(StrEnum):
    """How a neighbour uses the machine."""

    BURSTS = "bursts"
    STEADY = "steady"
    DRIFT = "drift"


def busy_at(kind: Neighbour, second: float, seconds: float) -> bool:
    """Whether a process of this neighbour works at a time since its start.

    Args:
        kind: of the neighbour.
        second: since it started.
        seconds: that it stays.

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
def beside(kind: Neighbour, seconds: float) -> Iterator[None]:
    """Have the neighbour work while the block runs, from its first line to its last.

    Args:
        kind: of the neighbour.
        seconds: that it stays at most; `drift` reaches its height there.

    Raises:
        RuntimeError: if the block took longer, so that its end was alone on the machine.
    """
    count = (os.cpu_count() or 1) if kind is Neighbour.STEADY else 1
    spawn = get_context("spawn")
    working = spawn.Semaphore(0)  # what is measured must not meet the imports of these processes
    crowd = [
        spawn.Process(target=_spin, args=(kind, seconds, os.getpid(), working), daemon=True)
        for _ in range(count)
    ]
    for one in crowd:
        one.start()
    try:
        for _ in crowd:
            if not working.acquire(timeout=LONGEST_START_S):
                raise RuntimeError(
                    f"a neighbour ({kind}) did not start within {LONGEST_START_S:g} s"
                )
        yield
        if not all(one.is_alive() for one in crowd):
            raise RuntimeError(
                f"the neighbour ({kind}) stayed for {seconds:.0f} s, and what ran beside it took longer: "
                "its figures are of two machines; let the neighbour stay longer"
            )
    finally:
        for one in crowd:
            one.terminate()
            one.join()


def main(
    kind: Annotated[Neighbour, typer.Argument(help="how the machine is used")],
    seconds: Annotated[float, typer.Option(min=0, help="for how long")] = 60.0,
) -> None:
    """Use the machine as a neighbour would."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the workers load numpy
    with beside(kind, seconds + 1):  # which wants to be there to the end
        time.sleep(seconds)


if __name__ == "__main__":
    typer.run(main)
