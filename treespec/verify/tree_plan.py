"""The links of a tree, as arrays for kernels that walk it."""

from functools import lru_cache
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.shape import TreeShape


@lru_cache(maxsize=256)
def plan_of(shape: TreeShape) -> Int[Tensor, "4 N"]:
    """First child, next sibling, previous sibling and row of `draft_probs` of each node; -1 for none.

    Int32, on the CPU. Cached and shared between callers: do not write to it.
    """
    plan = torch.full((4, shape.size), -1, dtype=torch.int32, device="cpu")
    for row, node in enumerate(shape.internal):
        children = shape.children[node]
        plan[0, node], plan[3, node] = children[0], row
        for elder, child in pairwise(children):
            plan[1, elder], plan[2, child] = child, elder
    return plan
