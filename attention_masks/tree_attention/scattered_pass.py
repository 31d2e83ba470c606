"""A pass over the trees of several sequences, each with keys in memory of its own, in fixed buffers.

The rows of all sequences are one after the other, without padding between them. One int32 buffer on the
device describes the pass, so that a captured graph reads what was last copied there:

    two unused numbers (`pass_arrays.HEADER`),
    node of each row (-1: padding), its depth-first rank, its position, its sequence;
    then for each sequence: prefix_len, nodes, its first row, its number of rows, and for each node of its
    tree the depth-first rank, one past its last descendant's rank, and the depth.

Padding rows follow all others; padding sequences have no rows. Neither reads or writes any key.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int32
from torch import Tensor

from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.pass_arrays import HEADER
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass

OF_ROW, OF_TEXT = 4, 4
"""Numbers of a row, and of a sequence before its nodes."""


class ScatteredSize(NamedTuple):
    """The capacity of a pass.

    Args:
        texts: number of sequences.
        rows: number of rows of all sequences together.
        nodes: number of nodes of any sequence's tree.
        keys: number of slots of any sequence, prefix and nodes. It decides into how many splits keys are
            divided; longer sequences are right, but slower.
    """

    texts: int
    rows: int
    nodes: int
    keys: int


class ScatteredPass(AnyPass):
    """Fixed memory for passes of one size; only `scattered.scattered_attention` runs them.

    Args:
        size: the capacity.
        device: where the buffer lives.
    """

    def __init__(self, size: ScatteredSize, device: torch.device) -> None:
        super().__init__()
        self.size = size
        self.batch, self.row_count, self.key_count = size.texts, size.rows, size.keys
        self.buffer: Int32[Tensor, " numbers"] = self.filled(()).to(device)

    @property
    def positions(self) -> Int32[Tensor, " rows"]:
        """The position of each row in its sequence, 0 for padding; a view of the buffer."""
        return self.buffer[HEADER + 2 * self.size.rows : HEADER + 3 * self.size.rows]

    def filled(
        self, passes: Sequence[TreePass], *, pinned: bool = False
    ) -> Int32[Tensor, " numbers"]:
        """The contents of the buffer for the passes of some sequences, on the CPU.

        Each pass runs the last nodes of its tree: those from some node on.

        Args:
            passes: at most `size.texts`.
            pinned: whether it is in pinned memory.

        Raises:
            InvalidInput: if they do not fit.
        """
        texts, rows, nodes, _ = self.size
        total = sum(tree_pass.row_count for tree_pass in passes)
        largest = max((tree_pass.topology.size for tree_pass in passes), default=0)
        if len(passes) > texts or total > rows or largest > nodes:
            raise InvalidInput(
                f"{len(passes)} sequences with {total} rows and trees of up to {largest} nodes do not fit "
                f"into a pass made for {texts} sequences, {rows} rows and {nodes} nodes"
            )
        length = HEADER + OF_ROW * rows + texts * (OF_TEXT + 3 * nodes)
        buffer = torch.zeros(length, dtype=torch.int32, pin_memory=pinned)
        of_rows = buffer[HEADER : HEADER + OF_ROW * rows].view(OF_ROW, rows)
        of_texts = buffer[HEADER + OF_ROW * rows :].view(texts, OF_TEXT + 3 * nodes)
        of_rows[:2] = -1
        row = 0
        for text, tree_pass in enumerate(passes):
            tree, prefix_len = tree_pass.topology.to("cpu"), tree_pass.prefix_len
            count, size = tree_pass.row_count, tree.size
            first, end = size - count, row + count
            of_rows[0, row:end] = torch.arange(first, size, dtype=torch.int32)
            of_rows[1, row:end] = tree.pre[first:]
            of_rows[2, row:end] = tree.depth[first:] + prefix_len
            of_rows[3, row:end] = text
            line = of_texts[text]
            line[0], line[1], line[2], line[3] = prefix_len, size, row, count
            of_nodes = line[OF_TEXT:].view(3, nodes)
            of_nodes[0, :size], of_nodes[1, :size] = tree.pre, tree.end
            of_nodes[2, :size] = tree.depth
            row = end
        return buffer
