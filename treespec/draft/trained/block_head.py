"""The network of a block drafter, and the rows that it keeps of a text.

It reads one block of tokens, `[anchor, mask, mask, ...]`, in one pass: queries are those of the block
alone, keys and values those of the whole text before the anchor and of the block. The text's come from the
target: its features, projected once to the width of the head, are the input of every layer's keys and
values. So a row of the text depends on its own token's features and position alone, and is computed once;
the rows of a block are of no use after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor, nn

from treespec.draft.trained.contract import Contract
from treespec.draft.trained.marginal_drafter import spread

__all__ = ["BlockHead", "BlockLayer", "BlockRules", "BlockSizes", "TextRows"]

Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Cosines and sines `[1, T, d]` for states, whose dtype they take, and positions `[1, T]`."""

FIRST_ROWS = 256
"""Rows that are reserved for a text at first."""


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of the layers.

    Args:
        width: h.
        inner: numbers between the two maps of a feed-forward layer.
        heads: heads of queries.
        kv_heads: heads of keys and values.
        head_dim: d, numbers of a head.
        eps: of the norms.
        bias: whether the maps of the attention have biases.
    """

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    bias: bool = False


@dataclass(frozen=True)
class BlockRules:
    """How a block is run: facts of a checkpoint that its tensors do not show.

    Args:
        block_size: B, tokens of a block.
        mask_token: stands at the positions to predict.
        order: for each feature that the projection reads, its index among those of the contract.
        causal: whether a token of the block sees only those before it (JetSpec), or all (DFlash).
        from_anchor: whether the row at a token predicts the token after it, so that the anchor's predicts
            the first, or the token at its own place.
        max_length: positions.
    """

    block_size: int
    mask_token: int
    order: tuple[int, ...]
    causal: bool
    from_anchor: bool
    max_length: int

    @property
    def depth(self) -> int:
        """Positions after the anchor that a block predicts."""
        return self.block_size if self.from_anchor else self.block_size - 1


class _Attention(nn.Module):
    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, queries, sizes.bias)
        self.k_proj = nn.Linear(sizes.width, keys, sizes.bias)
        self.v_proj = nn.Linear(sizes.width, keys, sizes.bias)
        self.o_proj = nn.Linear(queries, sizes.width, sizes.bias)
        self.q_norm = nn.RMSNorm(sizes.head_dim, sizes.eps)
        self.k_norm = nn.RMSNorm(sizes.head_dim, sizes.eps)
        self._head_dim = sizes.head_dim

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """[heads, T, d]."""
        return _turned(self.q_norm(self._by_head(self.q_proj(x))), turns)

    def keys(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """[kv heads, T, d]."""
        return _turned(self.k_norm(self._by_head(self.k_proj(x))), turns)

    def values(self, x: Tensor) -> Tensor:
        """[kv heads, T, d]."""
        return self._by_head(self.v_proj(x))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._head_dim)).transpose(0, 1)


class _FeedForward(nn.Module):
    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockLayer(nn.Module):
    """A layer of Qwen3 whose keys and values begin with those of the text.

    Args:
        sizes: its sizes.
    """

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.width, sizes.eps)
        self.self_attn = _Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.width, sizes.eps)
        self.mlp = _FeedForward(sizes)

    def forward(
        self,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        seen: Tensor | None,
    ) -> Tensor:
        """The block's states `[B, h]` after the layer.

        `keys`, `values`: `[kv heads, P + B, d]`, those of the text; the block's are written behind them.
        """
        attention, size = self.self_attn, len(x)
        normed = self.input_layernorm(x)
        keys[:, -size:] = attention.keys(normed, turns)
        values[:, -size:] = attention.values(normed)
        mixed = F.scaled_dot_product_attention(
            attention.queries(normed, turns)[None],
            keys[None],
            values[None],
            attn_mask=seen,
            enable_gqa=True,
        )
        x = x + attention.o_proj(mixed[0].transpose(0, 1).flatten(1))
        return x + self.mlp(self.post_attention_layernorm(x))


class TextRows:
    """Keys and values of a text in every layer, with room for one block behind them.

    Args:
        layers: number of layers.
        sizes: sizes of a layer.
        block: tokens of a block.
        like: a tensor of their dtype and device.
    """

    def __init__(self, layers: int, sizes: BlockSizes, block: int, like: Tensor) -> None:
        self.length, self._block = 0, block
        shape = (2, layers, sizes.kv_heads, FIRST_ROWS + block, sizes.head_dim)
        self._rows = like.new_zeros(shape)

    def reserve(self, tokens: int) -> None:
        """Make room for so many further tokens and a block."""
        needed, room = self.length + tokens + self._block, self._rows.shape[3]
        if needed > room:
            more = max(needed, 2 * room) - room
            self._rows = F.pad(self._rows, (0, 0, 0, more))

    def of(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the text in a layer, and the place of further tokens behind them."""
        keys, values = self._rows[:, layer, :, : self.length + tokens]
        return keys, values


class BlockHead(nn.Module):
    """The network.

    Args:
        sizes: sizes of its layers.
        rules: how a block is run.
        contract: what it reads of the target.
        layers: its layers.
        project: maps the features of a token, side by side, to the width h.
        hidden_norm: of the projected features.
        norm: of the last layer's states.
        embedding: maps ids to embeddings: the target's.
        head: maps normed states to logits: the target's, or the head's own.
        rotary: gives the rotations of positions.
        vocab_size: V, the target's vocabulary.
        kept: the target's id of each token that `head` has a row for; None for all.
        adapter: maps each feature to the width that `project` reads; None if it is the target's.
        ids: number of ids that have an embedding.
        target_layers: L, by which files name the target's states; 0 if they are never written.
    """

    def __init__(
        self,
        sizes: BlockSizes,
        rules: BlockRules,
        contract: Contract,
        *,
        layers: Sequence[BlockLayer],
        project: nn.Module,
        hidden_norm: nn.Module,
        norm: nn.Module,
        embedding: nn.Module,
        head: nn.Module,
        rotary: Rotary,
        vocab_size: int,
        kept: Int[Tensor, " v"] | None = None,
        adapter: nn.Module | None = None,
        ids: int | None = None,
        target_layers: int = 0,
    ) -> None:
        super().__init__()
        self.sizes, self.rules, self.contract = sizes, rules, contract
        self.layers = nn.ModuleList(layers)
        self.project, self.hidden_norm, self.norm, self.adapter = (
            project,
            hidden_norm,
            norm,
            adapter,
        )
        self.embedding, self.head, self.rotary = embedding, head, rotary
        self.vocab_size, self.kept, self.ids = vocab_size, kept, ids or vocab_size
        self.target_layers = target_layers
        self.depth, self.max_length = rules.depth, rules.max_length

    @torch.inference_mode()
    def new_text(self) -> TextRows:
        """Rows of an empty text."""
        like = self.layers[0].self_attn.k_proj.weight  # pyrefly: ignore[missing-attribute]
        return TextRows(len(self.layers), self.sizes, self.rules.block_size, like)

    @torch.inference_mode()
    def read(self, text: TextRows, features: Float[Tensor, "T F H"]) -> None:
        """Append the rows of the next T tokens of a text."""
        if not len(features):
            return
        states = features[:, list(self.rules.order)]
        if self.adapter is not None:
            states = self.adapter(states)
        states = self.hidden_norm(self.project(states.flatten(1)))
        turns, size = self._turns(states, text.length), len(states)
        text.reserve(size)
        for i, layer in enumerate(self.layers):
            attention: _Attention = layer.self_attn  # pyrefly: ignore[bad-assignment]
            keys, values = text.of(i, size)
            keys[:, -size:] = attention.keys(states, turns)
            values[:, -size:] = attention.values(states)
        text.length += size

    @torch.inference_mode()
    def forward(
        self, text: TextRows, anchor: int, path: Sequence[int], count: int
    ) -> Float[Tensor, "D V"]:
        """Logits of the first `count` positions after the anchor, which follows the text.

        `path`: tokens that stand in place of the first masks.
        """
        block = [anchor, *path]
        block += [self.rules.mask_token] * (self.rules.block_size - len(block))
        like: Any = self.norm.weight
        ids = torch.tensor(
            [token if token < self.ids else 0 for token in block], device=like.device
        )
        x = self.embedding(ids).to(like.dtype)
        turns, seen = self._turns(x, text.length), None
        if self.rules.causal:
            size = len(block)
            seen = torch.ones(size, text.length + size, dtype=torch.bool, device=like.device)
            seen = seen.tril(text.length)
        for i, layer in enumerate(self.layers):
            x = layer(x, turns, *text.of(i, len(block)), seen)
        first = 0 if self.rules.from_anchor else 1
        logits = self.head(self.norm(x[first : first + count]))
        return spread(logits, self.vocab_size, self.kept)

    def _turns(self, like: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[T, d]` from a position on."""
        positions = torch.arange(first, first + len(like), device=like.device)
        cos, sin = self.rotary(like[None], positions[None])
        return cos[0], sin[0]


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on [heads, T, d], by halves."""
    cos, sin = turns
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
