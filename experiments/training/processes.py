"""The processes of `torchrun`, which share the batches of a training; one process without it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Processes:
    """This process among others.

    Args:
        rank: its number.
        count: of all.
    """

    rank: int = 0
    count: int = 1

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            torch.distributed.barrier()

    def device(self, name: str) -> str:
        """This process's own device of those that share a name."""
        return f"cuda:{_local_rank()}" if self.count > 1 and name == "cuda" else name

    @property
    def first(self) -> bool:
        """Whether it writes files and shows progress."""
        return self.rank == 0

    def wrapped(self, module: nn.Module) -> Callable[..., Any]:
        """The module's forward pass, whose gradients become the mean over all processes."""
        if self.count == 1:
            return module
        return nn.parallel.DistributedDataParallel(module)


ALONE = Processes()
"""The only process."""


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the other processes of `torchrun`, if there are any."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    if device == "cuda":
        torch.cuda.set_device(_local_rank())
    torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Processes(torch.distributed.get_rank(), count)
    finally:
        torch.distributed.destroy_process_group()


def _local_rank() -> int:
    """The number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
