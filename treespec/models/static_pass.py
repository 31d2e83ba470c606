"""A whole tree's pass in memory that stays where it is: what a captured CUDA graph can run again.

A graph repeats the same operations on the same addresses, so whatever changes from step to step must be
read on the device. Here that is one integer buffer (`attention_masks.PassArrays`: prefix length, depths,
intervals of the tree) and the tokens. Positions and cache rows are computed from it inside the pass, the
attention is the Triton kernel, which reads lengths and tree from it too, and the cache hands out all its
rows (`TreeCache.static`). Trees are padded to a bucket. Padding nodes see only themselves: in the
attention they are no nodes (nothing is read for them, their output is 0), and no node sees them; their
cache rows lie behind the tree's, where the next pass writes.

Nothing in this file knows of graphs: it is an ordinary pass, and runs in Triton's interpreter too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attention_masks import Topology, topology
from attention_masks.tree_attention import BufferedPass, PassArrays
from attention_masks.tree_attention.pass_arrays import HEADER, fill
from treespec.errors import InvalidTree
from treespec.models.attention import TreeAttention
from treespec.models.cache import LayerShape, TreeCache
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner

__all__ = ["StaticPass", "StaticRunner", "bucket"]

STEP = 64
"""Buckets up to this size are powers of two, larger ones its multiples."""


def bucket(size: int) -> int:
    """The nodes that a pass over so many is padded to.

    Up to 64 nodes a pass is about as dear as reading the weights once, so doubling costs little; beyond,
    at most 63 nodes are padding.

    Example:
        >>> [bucket(size) for size in (1, 2, 3, 33, 64, 65, 129, 500)]
        [1, 2, 4, 64, 64, 128, 192, 512]
    """
    return 1 << (size - 1).bit_length() if size <= STEP else -(-size // STEP) * STEP


class StaticPass:
    """Fixed memory for passes over trees of at most `size` nodes; `load`, then `run`.

    Args:
        model: set to our attention.
        cache: its rows must have memory. The pass is good for as long as `cache.memory` stays the same.
        size: nodes that there is room for.
    """

    def __init__(self, model: PreTrainedModel, cache: TreeCache, size: int) -> None:
        self.model, self.cache, self.size = model, cache, size
        device = model.device
        self.input_ids = torch.zeros(1, size, dtype=torch.long, device=device)
        self.arrays = PassArrays.empty(1, size, size, device)
        self._index = torch.arange(size, device=device)
        self._attention = _KernelAttention(BufferedPass(self.arrays, cache.capacity))

    @torch.inference_mode()
    def load(self, tokens: Int[Tensor, "T"], tree: Topology, prefix_len: int) -> None:
        """Put a tree behind `prefix_len` committed rows into the buffers, without waiting for the device.

        Args:
            tokens: of the tree's nodes, on the model's device.
            tree: at most `size` nodes; behind them the tokens of earlier trees stay, as padding.
            prefix_len: number of committed rows.

        Raises:
            InvalidTree: if the cache has no room for so many rows: on the device nobody would notice.
        """
        if prefix_len + self.size > self.cache.capacity:
            raise InvalidTree(
                f"{prefix_len} rows and a bucket of {self.size} nodes do not fit into a cache of "
                f"{self.cache.capacity} rows: call `cache.begin` first"
            )
        # Pinned memory of its own for every copy: the allocator does not give it away before it was read.
        pinned = self.arrays.buffer.is_cuda
        buffer = torch.empty(self.arrays.buffer.shape, dtype=torch.int32, pin_memory=pinned)
        fill(PassArrays(buffer, self.size, self.size), 0, tree, prefix_len, range(tree.size))
        self.arrays.buffer.copy_(buffer, non_blocking=True)
        self.input_ids[0, : tree.size].copy_(tokens, non_blocking=True)

    @torch.inference_mode()
    def run(self) -> Float[Tensor, "size V"]:
        """Logits of all nodes, padding included, of what is in the buffers; nodes are written to the cache.

        Can be repeated: it leaves the buffers as they are.
        """
        line = self.arrays.buffer[0].long()
        depths = line[HEADER + 2 * self.size : HEADER + 3 * self.size]  # 0 for padding
        with self.cache.static(self._index + line[0]):
            output = self.model(
                input_ids=self.input_ids,
                position_ids=(depths + line[0])[None],
                past_key_values=self.cache,
                use_cache=True,
                treespec_pass=self._attention,
            )
        return output.logits[0]


class StaticRunner(TreeRunner):
    """Runs whole trees by static passes, one for each bucket; prompts and parts of trees as ever.

    Logits are rows of memory that the next pass of the same bucket may write to: `TreeRunner` has no such
    bound, and whoever hands them on must see to it.
    """

    def __init__(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> None:
        super().__init__(model, route, layout)
        self._passes: dict[int, StaticPass] = {}
        self._memory: tuple[int, ...] = ()

    @torch.inference_mode()
    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes first .. first + T - 1; see `TreeRunner.run`.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            UnsupportedModel: if the model was set to another attention since.
        """
        if first:
            return super().run(tokens, parents, first)
        self._require_nodes(len(tokens), len(parents), 0)
        self._require_route()
        tree = topology(parents)
        static = self._static(bucket(tree.size))
        static.load(tokens, tree, self.cache.length)
        logits = self._launch(static)
        self._parents = tree.parents
        return logits[: tree.size]

    def _static(self, size: int) -> StaticPass:
        """The pass of this bucket, with room for its rows in the cache."""
        self.cache.begin(0, size)
        if self.cache.memory != self._memory:
            self._forget_memory()
            self._memory = self.cache.memory
        if size not in self._passes:
            self._passes[size] = StaticPass(self.model, self.cache, size)
        return self._passes[size]

    def _launch(self, static: StaticPass) -> Float[Tensor, "size V"]:
        """Run what was loaded."""
        return static.run()

    def _forget_memory(self) -> None:
        """The rows have moved: whatever knows their addresses must go."""
        self._passes.clear()


class _KernelAttention(TreeAttention):
    """The kernel, over a tree that is on the device."""

    def __init__(self, tree_pass: BufferedPass) -> None:
        held: Any = tree_pass
        self.tree_pass, self.impl = held, "triton"
