"""Tables for a device: what a cache keeps, for each node of a tree at which the accepted path can end."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
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
    table = np.full((shape.size, shape.depth + 1), -1)
    for node, parent in enumerate(shape.parents):
        if node:
            table[node] = table[parent]
        table[node, shape.depths[node]] = node
    in_place = np.where(table < 0, -1, np.arange(shape.depth + 1))
    return None if bool((table == in_place).all()) else _onto(table, device)


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
    return _onto(np.array([[*rows, *[-1] * (width - len(rows))] for rows in kept]), device)


def _onto(table: np.ndarray, device: torch.device) -> Int[Tensor, "N D"]:
    """The table on a device, copied without waiting for it."""
    with torch.inference_mode(False):
        on_host = torch.from_numpy(table)
        if device.type == "cuda":
            on_host = on_host.pin_memory()
        return on_host.to(device, non_blocking=True)
