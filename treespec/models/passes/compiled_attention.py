"""Attention inside compiled passes: the mask of each row, computed from tensors alone, and the attention.

The mask is additive and shared by all layers with the same window. Our kernel
(`treespec.kernels.masked_attention`) takes 0.5 to 0.8 of the time of torch's attention in bfloat16
(`experiments.research.benchmarks.attention_on_cpu`).
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from treespec.errors import UnsupportedModel
from treespec.kernels.masked_attention import can_attend

BEYOND_ALL_RANKS = 1 << 30
"""Larger than the depth-first rank of any node."""


@no_type_check  # the compiler cannot trace the shape checks of the tests
class Seen:
    """What each row of a pass may attend to, as one mask per window.

    Args:
        tree: see `tree_arrays`.
        nodes: the nodes of the rows.
        node: the node of each key slot; negative for committed rows.
        length: number of committed rows.
    """

    def __init__(
        self,
        tree: Int[Tensor, "3 N"],
        nodes: Int[Tensor, "T"],
        node: Int[Tensor, "S"],
        length: Int[Tensor, ""],
    ) -> None:
        size = tree.shape[1]
        committed, in_tree = node < 0, node < size
        slots = tree[:, node.clamp(0, size - 1)]
        rank = tree[0][nodes][:, None]
        begins = torch.where(committed, 0, torch.where(in_tree, slots[0], BEYOND_ALL_RANKS))
        ends = torch.where(committed, BEYOND_ALL_RANKS, slots[1])
        self.visible = (begins <= rank) & (rank < ends)
        key = torch.where(committed, node, slots[2])  # positions relative to the root's
        self.distance = tree[2][nodes][:, None] - key
        self._biases: dict[Any, Tensor] = {}

    def bias(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "T S"]:
        """Additive mask: 0 where a row attends, the lowest finite number elsewhere."""
        if (window, dtype) not in self._biases:
            visible = self.visible
            if window is not None:
                visible = visible & (self.distance < window)
            zeros = torch.zeros_like(visible, dtype=dtype)
            self._biases[window, dtype] = zeros.masked_fill(~visible, torch.finfo(dtype).min)
        return self._biases[window, dtype]


@no_type_check
class MaskedAttention:
    """Our attention under a mask, by our kernel, or by torch for dtypes and sizes that the kernel lacks."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float | None,
        softcap: float | None,
        window: int | None,
        sinks: Float[Tensor, " Hq"] | None,
    ) -> Tensor:
        if mask is not None:
            raise UnsupportedModel("a layer was given a mask that tree attention would ignore")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        plain = query.shape[0] == 1 and query.dtype == key.dtype == value.dtype
        if plain and can_attend(query.shape[-1], query.dtype):
            bias = self._seen.bias(window, torch.float32).contiguous()
            sinks = None if sinks is None else sinks.float()
            arguments = (query.contiguous(), key, value, bias, sinks, scale, softcap or 0.0)
            return torch.ops.treespec.masked_attention(*arguments).transpose(1, 2)
        batch, heads, rows, _ = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        grouped = query.reshape(batch, kv_heads, group * rows, query.shape[-1])
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = grouped.to(wide) @ key.to(wide).transpose(-1, -2)
        scores = scores * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        slots = scores.shape[-1]
        scores = scores.view(batch, heads, rows, slots) + self._seen.bias(window, wide)
        top = scores.amax(-1, keepdim=True)
        sink = None if sinks is None else sinks.to(wide)[:, None, None]
        top = top if sink is None else torch.maximum(top, sink)
        weights = (scores - top).exp().reshape(batch, kv_heads, group * rows, slots)
        # Sum by a matrix product: code for a sum would hold for up to 4096 slots only, or for more only.
        total = (weights @ weights.new_ones(slots, 2))[..., :1].reshape(batch, heads, rows, 1)
        total = total if sink is None else total + (sink - top).exp()
        out = (weights @ value.to(wide)).reshape(batch, heads, rows, -1)
        return (out / total).to(query.dtype)
