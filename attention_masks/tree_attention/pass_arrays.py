"""The description of a pass that kernels read: one int32 buffer on the device, filled without waiting.

A line of the buffer describes one sequence:

    prefix_len, nodes,
    node of each row (-1: padding), depth-first rank of each row (-1: padding), depth of each row,
    depth-first rank of each node, one past its last descendant's rank (0: padding), depth of each node.

The widths (rows, nodes) are fixed when the buffer is made; its contents are not. A captured CUDA graph
reads what was last copied there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int32
from torch import Tensor

from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology

HEADER = 2
"""Number of entries before the rows: prefix_len and nodes."""


@dataclass(frozen=True, eq=False)
class PassArrays:
    """The buffer and its widths.

    Attributes:
        buffer: `[batch, HEADER + 3 * rows + 3 * nodes]`.
        rows: capacity in rows.
        nodes: capacity in nodes.
    """

    buffer: Int32[Tensor, "batch numbers"]
    rows: int
    nodes: int

    @classmethod
    def empty(
        cls, batch: int, rows: int, nodes: int, device: torch.device | str = "cpu"
    ) -> "PassArrays":
        """A buffer of padding only: no prefix, no nodes, no rows."""
        buffer = torch.zeros(batch, HEADER + 3 * (rows + nodes), dtype=torch.int32)
        buffer[:, HEADER : HEADER + 2 * rows] = -1
        return cls(buffer.to(device), rows, nodes)

    def to(self, device: torch.device | str) -> "PassArrays":
        """Copy the buffer to another device, in one transfer."""
        return PassArrays(self.buffer.to(device, non_blocking=True), self.rows, self.nodes)


def fill(
    arrays: PassArrays,
    sequence: int,
    topology: Topology,
    prefix_len: int,
    rows: Sequence[int],
) -> None:
    """Write one sequence into a buffer on the CPU; the rest of its line becomes padding."""
    max_rows, max_nodes = arrays.rows, arrays.nodes
    if len(rows) > max_rows or topology.size > max_nodes:
        raise InvalidInput(
            f"{len(rows)} rows of a tree of {topology.size} nodes do not fit into arrays "
            f"made for {max_rows} rows and {max_nodes} nodes"
        )
    line = arrays.buffer[sequence]
    line[0], line[1] = prefix_len, topology.size
    row_arrays = line[HEADER : HEADER + 3 * max_rows].view(3, max_rows)
    node_arrays = line[HEADER + 3 * max_rows :].view(3, max_nodes)
    if isinstance(rows, range):
        node = torch.arange(rows.start, rows.stop, dtype=torch.int32)
        pre = topology.pre[rows.start : rows.stop]
        depth = topology.depth[rows.start : rows.stop]
    else:
        node = torch.tensor(rows, dtype=torch.int32)
        pre, depth = topology.pre[node], topology.depth[node]
    count, size = len(rows), topology.size
    row_arrays[0, :count], row_arrays[1, :count], row_arrays[2, :count] = node, pre, depth
    row_arrays[:2, count:], row_arrays[2, count:] = -1, 0
    node_arrays[0, :size], node_arrays[1, :size] = topology.pre, topology.end
    node_arrays[2, :size], node_arrays[:, size:] = topology.depth, 0
