"""A pass over nodes of a tree in memory that stays where it is: what a captured CUDA graph can run again.

A graph repeats the same operations on the same addresses, so whatever changes from step to step must be
read on the device. Here that is one integer buffer (`attention_masks.PassArrays`: prefix length, depths,
intervals of the tree) and the tokens. Positions and cache rows are computed from it inside the pass, the
attention is the Triton kernel, which reads lengths and tree from it too, and the cache hands out all its
rows (`TreeCache.static`). The nodes of a pass are padded to a bucket. Padding nodes see only themselves:
in the attention they are no nodes (nothing is read for them, their output is 0), and no node sees them;
their cache rows lie behind the tree's, where the next pass writes.

A drafter runs a tree in parts, level by level: nodes from some node on, which see nodes of earlier passes.
Such a pass is told the whole tree so far, and which of its nodes it runs.

Nothing in this file knows of graphs: it is an ordinary pass, and runs in Triton's interpreter too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

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

__all__ = ["Size", "StaticPass", "StaticRunner", "bucket", "most_sizes", "size_of"]

BUCKET_STEP = 64
"""Buckets up to this size are powers of two, larger ones its multiples."""


def bucket(size: int) -> int:
    """The nodes that a pass over so many is padded to.

    Up to 64 nodes a pass is about as dear as reading the weights once, so doubling costs little; beyond,
    at most 63 nodes are padding.

    Example:
        >>> [bucket(size) for size in (1, 2, 3, 33, 64, 65, 129, 500)]
        [1, 2, 4, 64, 64, 128, 192, 512]
    """
    return (
        1 << (size - 1).bit_length()
        if size <= BUCKET_STEP
        else -(-size // BUCKET_STEP) * BUCKET_STEP
    )


class Size(NamedTuple):
    """What a pass has room for.

    Args:
        rows: nodes that it runs.
        nodes: of the tree so far, those that it runs among them.
    """

    rows: int
    nodes: int


def size_of(first: int, count: int) -> Size:
    """The room that nodes first .. first + count - 1 of a tree are given.

    The nodes of earlier passes cost nothing but numbers to be copied, so there is room for 64 of them or a
    multiple: that keeps sizes few.

    Example:
        >>> size_of(0, 5), size_of(5, 3), size_of(70, 70)
        (Size(rows=8, nodes=8), Size(rows=4, nodes=64), Size(rows=128, nodes=192))
    """
    rows = bucket(count)
    return Size(rows, -(-(first + count) // BUCKET_STEP) * BUCKET_STEP if first else rows)


def most_sizes(nodes: int, parts: bool = False) -> int:
    """How many sizes passes over trees can have: of static passes, and of graphs that are captured of them.

    Args:
        nodes: of the largest tree, tokens that open a drafter's pass above its root among them.
        parts: whether trees are also run in parts, as drafters run them; there is a size more for each
            bucket of a part and each 64 nodes of the tree that it ends in.

    Example:
        >>> most_sizes(1), most_sizes(64), most_sizes(512), most_sizes(64, parts=True)
        (1, 7, 14, 14)
    """
    last = bucket(nodes)
    buckets = (
        last.bit_length()
        if last <= BUCKET_STEP
        else BUCKET_STEP.bit_length() + last // BUCKET_STEP - 1
    )
    return buckets * (1 + -(-nodes // BUCKET_STEP)) if parts else buckets


class StaticPass:
    """Fixed memory for passes over nodes of trees; `load`, then `run`.

    Args:
        model: set to our attention.
        cache: its rows must have memory. The pass is good for as long as `cache.memory` stays the same.
        size: nodes that there is room for.
    """

    def __init__(self, model: PreTrainedModel, cache: TreeCache, size: Size) -> None:
        self.model, self.cache, self.size = model, cache, size
        device = model.device
        self.input_ids = torch.zeros(1, size.rows, dtype=torch.long, device=device)
        self.arrays = PassArrays.empty(1, size.rows, size.nodes, device)
        self._index = torch.arange(size.rows, device=device)
        self._attention = _KernelAttention(BufferedPass(self.arrays, cache.capacity))

    @torch.inference_mode()
    def load(
        self, tokens: Int[Tensor, "T"], tree: Topology, prefix_len: int, first: int = 0
    ) -> None:
        """Put nodes behind `prefix_len` committed rows into the buffers, without waiting for the device.

        Args:
            tokens: of the nodes to run, on the model's device. Behind them those of earlier trees stay, as
                padding.
            tree: of these nodes and those that have run.
            prefix_len: number of committed rows.
            first: node to run; all behind it are run, too.

        Raises:
            InvalidTree: if the cache has no room for so many rows: on the device nobody would notice.
        """
        rows, nodes = self.size
        if prefix_len + first + rows > self.cache.capacity:
            raise InvalidTree(
                f"{prefix_len + first} rows and a bucket of {rows} nodes do not fit into a cache of "
                f"{self.cache.capacity} rows: call `cache.begin` first"
            )
        # Pinned memory of its own for every copy: the allocator does not give it away before it was read.
        pinned = self.arrays.buffer.is_cuda
        buffer = torch.empty(self.arrays.buffer.shape, dtype=torch.int32, pin_memory=pinned)
        fill(PassArrays(buffer, rows, nodes), 0, tree, prefix_len, range(first, tree.size))
        self.arrays.buffer.copy_(buffer, non_blocking=True)
        self.input_ids[0, : len(tokens)].copy_(tokens, non_blocking=True)

    @torch.inference_mode()
    def run(self) -> Float[Tensor, "rows V"]:
        """Logits of all rows, padding included, of what is in the buffers; nodes are written to the cache.

        Can be repeated: it leaves the buffers as they are.
        """
        line, rows = self.arrays.buffer[0].long(), self.size.rows
        depths = line[HEADER + 2 * rows : HEADER + 3 * rows]  # 0 for padding
        with self.cache.static(self._index + line[0] + line[HEADER]):  # behind the nodes before
            output = self.model(
                input_ids=self.input_ids,
                position_ids=(depths + line[0])[None],
                past_key_values=self.cache,
                use_cache=True,
                treespec_pass=self._attention,
            )
        return output.logits[0]


class StaticRunner(TreeRunner):
    """Runs nodes of trees by static passes, one for each size; prompts as ever.

    Logits are rows of memory that the next pass of the same size may write to: `TreeRunner` has no such
    bound, and whoever hands them on must see to it.
    """

    any_cache = False

    def __init__(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> None:
        super().__init__(model, route, layout)
        self._passes: dict[Size, StaticPass] = {}
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
        count = len(tokens)
        self._require_nodes(count, len(parents), first)
        self._require_route()
        tree = topology(parents)
        static = self._static(first, size_of(first, count))
        static.load(tokens, tree, self.cache.length, first)
        logits = self._launch(static)
        self._parents = tree.parents
        return logits[:count]

    def _static(self, first: int, size: Size) -> StaticPass:
        """The pass of this size, with room for its rows in the cache."""
        cache = self.cache
        cache.begin(first, max(size.rows, size.nodes - first))
        if cache.memory != self._memory:
            self._forget_memory()
            self._memory = cache.memory
        if size not in self._passes:
            self._passes[size] = StaticPass(self.model, cache, size)
        return self._passes[size]

    def _launch(self, static: StaticPass) -> Float[Tensor, "rows V"]:
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
