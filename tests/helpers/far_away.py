"""A stand-in for a device: tensors that say that they are elsewhere, and what is read of them."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero"}
"""What waits for a device."""


class FarAway(TorchFunctionMode):
    """While it lasts all tensors are on CUDA, and what reads a number of one is noted in `reads`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.is_cpu.__get__, torch.Tensor.is_cuda.__get__):
            return func == torch.Tensor.is_cuda.__get__
        name = getattr(func, "__name__", "")
        if name in READS:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))
