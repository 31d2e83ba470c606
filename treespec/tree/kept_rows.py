"""Tables for a device: what a cache keeps, for each node of a tree at which the accepted path can end."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.tree.shape import TreeShape


@lru_cache(maxsize=256)
def kept_paths(shape: TreeShape, device: torch.device) -> Int[Tensor, "N D"] | None:
    """The path to each node, -1 behind it; None if every path keeps its rows where they are, as in a chain.

    Example:
        >>> kept_paths(TreeShape((-1, 0, 0)), torch.device("cpu")).tolist()
        [[0, -1], [0, 1], [0, 2]]
        >>> kept_paths(TreeShape.chain(3), torch.device("cpu"))
    """
    return _table([shape.path(node) for node in range(shape.size)], device)


def kept_rows(
    shape: TreeShape, rows: Mapping[int, int], pending: int, device: torch.device
) -> Int[Tensor, "N D"] | None:
    """As `kept_paths`, for a model that ran some of the nodes, below pending tokens.

    Args:
        shape: the tree.
        rows: the row of each node that was run, the root among them.
        pending: number of committed tokens above the root, which have the first rows.
        device: of the table.
    """
    paths = (shape.path(node) for node in range(shape.size))
    kept = [[*range(pending), *(rows[node] for node in path if node in rows)] for path in paths]
    return _table(kept, device)


def _table(kept: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "N D"] | None:
    if all(row == i for rows in kept for i, row in enumerate(rows)):
        return None
    width = max(map(len, kept))
    padded = [[*rows, *[-1] * (width - len(rows))] for rows in kept]
    with torch.inference_mode(False):
        return torch.tensor(padded, dtype=torch.int64, device=device)
