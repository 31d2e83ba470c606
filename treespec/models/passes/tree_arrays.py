"""The tree of a compiled pass as tensors."""

from functools import lru_cache

import torch
from jaxtyping import Int32
from torch import Tensor

from attention_masks import topology
from treespec.models.passes.compiled_attention import BEYOND_ALL_RANKS

MOST_NODES = 2048
"""Upper bound on the nodes of a compiled pass: for mixtures of experts, the compiler counts in 16 bits."""


@lru_cache(maxsize=1024)
def tree_arrays(parents: tuple[int, ...]) -> Int32[Tensor, "3 N"]:
    """For every node of a tree: depth-first rank, end of the subtree's ranks, depth.

    The arrays of a single root have a second, unused node, since compiled code handles varying sizes only
    from 2.
    """
    tree = topology(parents)
    with torch.inference_mode(False):
        arrays = torch.stack([tree.pre, tree.end, tree.depth])
        if tree.size == 1:
            arrays = torch.cat([arrays, torch.full_like(arrays, BEYOND_ALL_RANKS)], dim=1)
    return arrays
