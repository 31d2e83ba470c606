"""What kernels read about a pass: one int32 buffer on the device, filled without waiting for it.

A line of the buffer is one sequence:

    prefix_len, nodes,
    node of each row (-1: padding), depth-first rank of each row (-1), depth of each row,
    depth-first rank of each node, one past its last descendant's (0: padding), depth of each node.

The widths (rows, nodes) are fixed when the buffer is made, what is in it is not: a captured CUDA graph
reads whatever was last copied there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int32
from torch import Tensor

from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology

__all__ = ["HEADER", "PassArrays", "fill"]

HEADER = 2
"""Numbers before the rows: prefix_len and nodes."""


@dataclass(frozen=True, eq=False)
class PassArrays:
    """The buffer and its widths.

    Attributes:
        buffer: `[batch, HEADER + 3 * rows + 3 * nodes]`.
        rows: number of rows that there is room for.
        nodes: number of nodes that there is room for.
    """

    buffer: Int32[Tensor, "batch numbers"]
    rows: int
    nodes: int

    @classmethod
    def empty(
        cls, batch: int, rows: int, nodes: int, device: torch.device | str = "cpu"
    ) -> "PassArrays":
        """A buffer of padding: no prefix, no nodes, no rows."""
        buffer = torch.zeros(batch, HEADER + 3 * (rows + nodes), dtype=torch.int32)
        buffer[:, HEADER : HEADER + 2 * rows] = -1
        return cls(buffer.to(device), rows, nodes)

    def to(self, device: torch.device | str) -> "PassArrays":
        """The same numbers on another device, in one transfer."""
        return PassArrays(self.buffer.to(device, non_blocking=True), self.rows, self.nodes)


def fill(
    arrays: PassArrays,
    sequence: int,
    topology: Topology,
    prefix_len: int,
    rows: Sequence[int],
) -> None:
    """Write one sequence into a buffer on the CPU; what is left of its line becomes padding.

    Raises:
        InvalidInput: if the buffer has no room for the rows or nodes.
    """
    wide, many = arrays.rows, arrays.nodes
    if len(rows) > wide or topology.size > many:
        raise InvalidInput(
            f"{len(rows)} rows of a tree of {topology.size} nodes do not fit into arrays "
            f"made for {wide} rows and {many} nodes"
        )
    line = arrays.buffer[sequence]
    line[0], line[1] = prefix_len, topology.size
    of_rows = line[HEADER : HEADER + 3 * wide].view(3, wide)
    of_nodes = line[HEADER + 3 * wide :].view(3, many)
    if isinstance(rows, range):
        first, last = rows.start, rows.stop
        node = torch.arange(first, last, dtype=torch.int32)
        pre, depth = topology.pre[first:last], topology.depth[first:last]
    else:
        node = torch.tensor(rows, dtype=torch.int32)
        pre, depth = topology.pre[node], topology.depth[node]
    count = len(rows)
    of_rows[0, :count], of_rows[1, :count], of_rows[2, :count] = node, pre, depth
    of_rows[:2, count:], of_rows[2, count:] = -1, 0
    size = topology.size
    of_nodes[0, :size], of_nodes[1, :size] = topology.pre, topology.end
    of_nodes[2, :size], of_nodes[:, size:] = topology.depth, 0
