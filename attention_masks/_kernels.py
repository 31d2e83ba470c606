"""Loading of Triton kernels: at the first call, with an error that names what is missing."""

import os
from importlib import import_module
from typing import Any

import torch

from attention_masks.errors import Unavailable

OLDEST = (8, 0)
"""The lowest compute capability of a GPU that Triton compiles for."""


def why_too_old(device: torch.device) -> str | None:
    """What is wrong with a GPU that Triton compiles nothing for; None for other devices."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= OLDEST:
        return None
    needed, found = (".".join(map(str, version)) for version in (OLDEST, capability))
    return f"needs a GPU of compute capability {needed} or newer, but {device} has {found}"


def load_kernels(module: str, device: torch.device, tensors: str, instead: str) -> Any:
    """Import the module with the kernels; its `INTERPRETED` says whether Triton interprets them."""
    on_cuda = device.type == "cuda"
    if not on_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable(
            f"impl='triton' needs a CUDA device, and the {tensors} are on {device}: use {instead}, or set "
            "TRITON_INTERPRET=1 before Triton is imported to try the kernel on the CPU"
        )
    try:
        kernels: Any = import_module(module)
    except ImportError as missing:
        raise Unavailable(f"impl='triton' needs Triton: pip install triton ({missing})") from None
    if not on_cuda and not kernels.INTERPRETED:
        raise Unavailable(
            "TRITON_INTERPRET=1 was set after Triton had been imported: set it before Python starts"
        )
    return kernels
