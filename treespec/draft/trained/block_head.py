"""The network of a block drafter, and the rows that it keeps of a text.

It reads one block of tokens, `[anchor, mask, mask, ...]`, in one pass: queries are those of the block
alone, keys and values those of the whole text before the anchor and of the block. The text's come from the
target: its features, projected once to the width of the head, are the input of every layer's keys and
values. So a row of the text depends on its own token's features and position alone, and is computed once;
the rows of a block are of no use after it. While a head is trained, many blocks of a text are read at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from treespec.draft.trained.contract import Contract
from treespec.draft.trained.marginal_drafter import spread

Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Cosines and sines `[B, T, d]` for states, whose dtype they take, and positions `[B, T]`."""

Behind = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A text's keys and values of a layer, with those of a block `[B, kv heads, S, d]` behind them."""

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
        return self.block_size - self.first_row

    @property
    def first_row(self) -> int:
        """The place in a block whose row predicts the position after the anchor."""
        return 0 if self.from_anchor else 1


class BlockNorm(nn.RMSNorm):
    """Norms in the dtype of its weights, which under autocast is not that of what it reads."""

    def forward(self, x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
        """The normed rows."""
        weight = self.weight
        return torch.rms_norm(x.to(weight.dtype), self.normalized_shape, weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, queries, sizes.bias)
        self.k_proj = nn.Linear(sizes.width, keys, sizes.bias)
        self.v_proj = nn.Linear(sizes.width, keys, sizes.bias)
        self.o_proj = nn.Linear(queries, sizes.width, sizes.bias)
        self.q_norm = BlockNorm(sizes.head_dim, sizes.eps)
        self.k_norm = BlockNorm(sizes.head_dim, sizes.eps)
        self._head_dim = sizes.head_dim

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """[B, heads, T, d]."""
        return _turned(self.q_norm(self._by_head(self.q_proj(x))), turns)

    def keys(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """[B, kv heads, T, d]."""
        return _turned(self.k_norm(self._by_head(self.k_proj(x))), turns)

    def values(self, x: Tensor) -> Tensor:
        """[B, kv heads, T, d]."""
        return self._by_head(self.v_proj(x))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._head_dim)).transpose(1, 2)


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
        self.input_layernorm = BlockNorm(sizes.width, sizes.eps)
        self.self_attn = _Attention(sizes)
        self.post_attention_layernorm = BlockNorm(sizes.width, sizes.eps)
        self.mlp = _FeedForward(sizes)

    def of_text(self, states: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values of a text `[B, kv heads, T, d]`, whose features were fused to `[B, T, h]`."""
        return self.self_attn.keys(states, turns), self.self_attn.values(states)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], behind: Behind, seen: Tensor | None
    ) -> Tensor:
        """The states of blocks `[B, S, h]` after the layer.

        `seen`: `[..., S, P + S]`, which of the text and the blocks each token sees; None for everything.
        """
        attention, normed = self.self_attn, self.input_layernorm(x)
        keys, values = behind(attention.keys(normed, turns), attention.values(normed))
        mixed = F.scaled_dot_product_attention(
            attention.queries(normed, turns), keys, values, attn_mask=seen, enable_gqa=True
        )
        x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
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
        shape = (2, layers, 1, sizes.kv_heads, FIRST_ROWS + block, sizes.head_dim)
        self._rows = like.new_zeros(shape)

    def reserve(self, tokens: int) -> None:
        """Make room for so many further tokens and a block."""
        needed, room = self.length + tokens + self._block, self._rows.shape[-2]
        if needed > room:
            more = max(needed, 2 * room) - room
            self._rows = F.pad(self._rows, (0, 0, 0, more))

    def put(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows behind the text, over what stands there; those of the text and these."""
        size = keys.shape[-2]
        all_keys, all_values = self._rows[:, layer, :, :, : self.length + size]
        all_keys[:, :, -size:] = keys
        all_values[:, :, -size:] = values
        return all_keys, all_values


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
        return TextRows(len(self.layers), self.sizes, self.rules.block_size, self._like())

    @torch.inference_mode()
    def read(self, text: TextRows, features: Float[Tensor, "T F H"]) -> None:
        """Append the rows of the next T tokens of a text."""
        if not len(features):
            return
        states = self._fused(features[None])
        turns, size = self._turns(states, text.length), len(features)
        text.reserve(size)
        for i, layer in enumerate(self._layers()):
            text.put(i, *layer.of_text(states, turns))
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
        x = self._embedded(
            torch.tensor(
                [[token if token < self.ids else 0 for token in block]], device=self._like().device
            )
        )
        turns, seen = self._turns(x, text.length), None
        if self.rules.causal:
            seen = torch.ones(
                len(block), text.length + len(block), dtype=torch.bool, device=x.device
            ).tril(text.length)
        for i, layer in enumerate(self._layers()):
            x = layer(x, turns, partial(text.put, i), seen)
        first = self.rules.first_row
        logits = self.head(self.norm(x[0, first : first + count]))
        return spread(logits, self.vocab_size, self.kept)

    def at_anchors(
        self,
        features: Float[Tensor, "B T F H"],
        positions: Int[Tensor, "B T"],
        ids: Int[Tensor, "B T"],
        anchors: Int[Tensor, "B N"],
        before: Bool[Tensor, "B N T"],
    ) -> Float[Tensor, "B N D h"]:
        """What the head's matrix reads at the positions after some anchors of texts, in one pass.

        Gradients pass. The blocks are those that `forward` reads at each anchor; none sees another.

        Args:
            features: of every token.
            positions: of every token in its text.
            ids: the tokens.
            anchors: places of anchors in their rows.
            before: whether a token stands before an anchor in its text.
        """
        size, count = self.rules.block_size, anchors.shape[1]
        states = self._fused(features)
        turns_of_text = self._turned_to(states, positions)
        blocks = torch.full((*anchors.shape, size), self.rules.mask_token, device=ids.device)
        blocks[..., 0] = ids.gather(1, anchors)
        steps = torch.arange(size, device=ids.device)
        places = positions.gather(1, anchors)[..., None] + steps
        x = self._embedded(blocks.flatten(1))
        turns = self._turned_to(x, places.flatten(1))
        within = torch.ones(size, size, dtype=torch.bool, device=ids.device)
        within = within.tril() if self.rules.causal else within
        own = torch.block_diag(*[within] * count).expand(len(ids), -1, -1)
        seen = torch.cat([before.repeat_interleave(size, 1), own], dim=-1)[:, None]
        for layer in self._layers():
            behind = partial(_joined, *layer.of_text(states, turns_of_text))
            x = layer(x, turns, behind, seen)
        first = self.rules.first_row
        return self.norm(x.unflatten(1, (count, size))[:, :, first : first + self.depth])

    def _fused(self, features: Tensor) -> Tensor:
        """Features `[B, T, F, H]` as every layer's keys and values read them, `[B, T, h]`."""
        order = list(self.rules.order)
        states = features if order == sorted(order) else features[:, :, order]
        if self.adapter is not None:
            states = self.adapter(states)
        return self.hidden_norm(self.project(states.flatten(2)))

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.embedding(ids).to(self._like().dtype)

    def _turns(self, like: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of one text's positions from one on; see `_turned_to`."""
        positions = torch.arange(first, first + like.shape[1], device=like.device)
        return self._turned_to(like, positions[None])

    def _turned_to(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[B, 1, T, d]` of positions, of the dtype of `like`."""
        cos, sin = self.rotary(like, positions)
        return cos[:, None], sin[:, None]

    def _layers(self) -> Any:
        return self.layers

    def _like(self) -> Any:
        """A weight, of the dtype and device of all."""
        return self.norm.weight


def _joined(
    text_keys: Tensor, text_values: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.cat([text_keys, keys], 2), torch.cat([text_values, values], 2)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on [B, heads, T, d], by halves."""
    cos, sin = turns
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
