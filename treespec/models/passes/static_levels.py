"""The passes that draft a tree level by level, in fixed memory, for one graph over all of them.

What a single static pass copies from the host at every step, the tree, is constant here: the shape is
fixed. Only the prefix length and the tokens change, and both are on the device. So do the states that a
trained head reads beside the tokens: each row below the first level reads that which its parent's row left.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_masks import topology
from attention_masks.tree_attention import PassArrays
from attention_masks.tree_attention.pass_arrays import fill
from treespec.models.passes.static_pass import StaticPass
from treespec.models.passes.static_sizes import Size, size_of
from treespec.step import Scores


def rows_of_levels(parents_by_level: Sequence[tuple[int, ...]]) -> int:
    """Rows behind the committed ones that passes over these levels write, padding included.

    `parents_by_level`: for each level, the parents of all rows that have run after it.

    Example:
        >>> rows_of_levels([(-1,), (-1, 0, 0, 0)])
        5
    """
    return max(first + size_of(first, count).rows for first, count in _spans(parents_by_level))


def _spans(parents_by_level: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """First row and number of rows of each level."""
    ends = [0, *map(len, parents_by_level)]
    return [(first, end - first) for first, end in pairwise(ends)]


class StaticLevels:
    """One static pass for each level of a tree.

    Args:
        new_pass: makes a pass of a size; its cache has room for `rows_of_levels` rows behind the prefix.
        parents_by_level: for each level, the parents of all rows that have run after it, as row indices.
    """

    def __init__(
        self,
        new_pass: Callable[[Size], StaticPass],
        parents_by_level: Sequence[tuple[int, ...]],
    ) -> None:
        self._spans = _spans(parents_by_level)
        self._passes, self._above, above = [], [], 0
        for (first, count), parents in zip(self._spans, parents_by_level, strict=True):
            static = new_pass(size_of(first, count))
            rows, nodes = static.size
            on_cpu = torch.empty(static.arrays.buffer.shape, dtype=torch.int32)
            fill(
                PassArrays(on_cpu, rows, nodes), 0, topology(parents), 0, range(first, len(parents))
            )
            static.arrays.buffer.copy_(on_cpu)
            self._passes.append(static)
            read = [parent - above for parent in parents[first:]]
            self._above.append(torch.tensor(read, device=static.arrays.buffer.device))
            above = first
        self.model = self._passes[0].model

    def run(
        self,
        level: int,
        tokens: Int[Tensor, "T"],
        prefix_len: Int[Tensor, "1"],
        states: Float[Tensor, "S W"] | None = None,
    ) -> Scores:
        """Run a level after those above it; logits and features of its T rows.

        `prefix_len`: number of committed rows, on the device. `states`: for a head, those that the rows of
        the first level read, or those that all rows of the level above left.
        """
        static, (_, count) = self._passes[level], self._spans[level]
        static.arrays.buffer[0, :1].copy_(prefix_len)
        static.input_ids[0, :count].copy_(tokens)
        if static.given is not None:
            assert states is not None
            static.given[0, :count].copy_(states[self._above[level]] if level else states)
        scores = static.run()
        features = None if scores.features is None else scores.features[:count]
        return Scores(scores.logits[:count], features)
