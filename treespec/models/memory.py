"""Memory of caches: bytes of a row, and bytes that are free."""

from collections import Counter
from typing import TYPE_CHECKING

import psutil
import torch

if TYPE_CHECKING:
    from treespec.models.transformers_model import TransformersModel


CAPACITY_STEP = 64
"""Capacities of caches are multiples of this."""


def rows_for(tokens: int, nodes: int) -> int:
    """Rows that a cache needs to hold a text, followed by a tree.

    This counts the largest tree twice: a draft may run nodes that are not verified, and captured passes are
    padded (`treespec.models.passes.static_pass`).

    Args:
        tokens: tokens of the text.
        nodes: nodes of the largest tree.
    """
    return -(-(tokens + 2 * nodes) // CAPACITY_STEP) * CAPACITY_STEP


def row_bytes(model: "TransformersModel") -> Counter[torch.device]:
    """Bytes that one token takes in a model's cache, on each device that holds layers of it."""
    taken: Counter[torch.device] = Counter()
    for layer in model.finding.layout:
        if layer is not None:
            heads = layer.batch * layer.kv_heads
            taken[layer.device] += heads * (layer.key_dim + layer.value_dim) * layer.dtype.itemsize
    return taken


def free_bytes(device: torch.device) -> int:
    """Free memory of a device in bytes; on CUDA with what PyTorch holds and has not given out."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    return psutil.virtual_memory().available
