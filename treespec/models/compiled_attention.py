"""Attention inside compiled passes: what each row of a pass sees, from tensors alone, and the sum over it.

The mask is additive and shared by all layers of one window. Our kernel
(`treespec.kernels.masked_attention`) takes 0.5 to 0.8 of the time of torch's attention in bfloat16
(`experiments.benchmarks.attention_on_cpu`).
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from treespec.errors import UnsupportedModel
from treespec.kernels.masked_attention import can_attend

__all__ = ["BEYOND_ALL_RANKS", "MaskedAttention", "Seen"]

BEYOND_ALL_RANKS = 1 << 30
"""No rank of a node is as large."""


@no_type_check  # while tests check shapes, the compiler could not trace it
class Seen:
    """What each row of a pass sees, as masks, one for each window.

    Args:
        tree: see `tree_arrays`.
        nodes: the nodes of the rows.
        node: of each key slot: its node; negative for committed rows.
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
        committed, there = node < 0, node < size
        at = tree[:, node.clamp(0, size - 1)]
        rank = tree[0][nodes][:, None]
        begins = torch.where(committed, 0, torch.where(there, at[0], BEYOND_ALL_RANKS))
        ends = torch.where(committed, BEYOND_ALL_RANKS, at[1])
        self.visible = (begins <= rank) & (rank < ends)
        key = torch.where(committed, node, at[2])  # positions, less the committed rows
        self.distance = tree[2][nodes][:, None] - key
        self._biases: dict[Any, Tensor] = {}

    def bias(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "T S"]:
        """0 where a row sees, the least number elsewhere."""
        if (window, dtype) not in self._biases:
            visible = self.visible
            if window is not None:
                visible = visible & (self.distance < window)
            hidden = torch.finfo(dtype).min
            open_ = torch.zeros_like(visible, dtype=dtype)
            self._biases[window, dtype] = open_.masked_fill(~visible, hidden)
        return self._biases[window, dtype]


@no_type_check
class MaskedAttention:
    """Our attention under a mask, by a kernel of ours; by torch for numbers the kernel does not know."""

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
        """The attention of one layer."""
        if mask is not None:
            raise UnsupportedModel("a layer was given a mask that tree attention would ignore")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        alike = query.shape[0] == 1 and query.dtype == key.dtype == value.dtype
        if alike and can_attend(query.shape[-1], query.dtype):
            bias = self._seen.bias(window, torch.float32).contiguous()
            sinks = None if sinks is None else sinks.float()
            given = (query.contiguous(), key, value, bias, sinks, scale, softcap or 0.0)
            return torch.ops.treespec.masked_attention(*given).transpose(1, 2)
        batch, heads, rows, _ = query.shape
        shared = key.shape[1]
        group = heads // shared
        grouped = query.reshape(batch, shared, group * rows, query.shape[-1])
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = grouped.to(wide) @ key.to(wide).transpose(-1, -2)
        scores = scores * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        used = scores.shape[-1]
        scores = scores.view(batch, heads, rows, used) + self._seen.bias(window, wide)
        top = scores.amax(-1, keepdim=True)
        sink = None if sinks is None else sinks.to(wide)[:, None, None]
        top = top if sink is None else torch.maximum(top, sink)
        weights = (scores - top).exp().reshape(batch, shared, group * rows, used)
        # The compiler makes sums over slots for at most 4096 of them, or for more; products for any number.
        total = (weights @ weights.new_ones(used, 2))[..., :1].reshape(batch, heads, rows, 1)
        total = total if sink is None else total + (sink - top).exp()
        out = (weights @ value.to(wide)).reshape(batch, heads, rows, -1)
        return (out / total).to(query.dtype)
