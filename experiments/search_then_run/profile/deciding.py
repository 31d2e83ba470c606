"""What a tree that grows takes to decide where: timed on made-up probabilities, without a model."""

import random
import time
from typing import Any

import torch

from treespec.search.growth import Eagle2
from treespec.tree import TreeShape

__all__ = ["measure_deciding"]

SIZES = (1, 8, 64, 256, 1024, 2048)
"""Nodes drafted so far; growths draft many times the nodes that they keep."""
CHILDREN = 8


def measure_deciding(order: random.Random, into: Any) -> None:
    """Time a decision of EAGLE-2, whose work all growths share: values along paths, and the best of them.

    Args:
        order: draws the probabilities.
        into: gets the seconds, in lists by size.
    """
    for size in SIZES:
        # A new shape each time, since a drafter's is new at each level.
        shape = TreeShape((-1, *((node - 1) // CHILDREN for node in range(1, size))))
        probs = torch.tensor([order.random() for _ in range(size)])
        growth = Eagle2(CHILDREN, shape.depth + 1, max(1, size // 2))
        start = time.perf_counter()
        growth.next(shape, lambda probs=probs: probs)
        growth.keep(shape, lambda probs=probs: probs)
        into[size].append((time.perf_counter() - start) / 2)
