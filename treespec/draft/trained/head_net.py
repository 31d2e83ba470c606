"""The network of an autoregressive head, as a transformers model that our passes can run.

A head reads, for each token, the token's embedding and the hidden state of the token *before* it, and
predicts the token after it. What the families differ in are parts of one network:

    fuse       the target's features of a token, [F, H] -> the state [W] that the head reads
    combine    embedding and state -> the input of the first layer
    layers     one or more decoder layers, with a cache
    norm       of the last layer's output; the identity where a family has none
    head       normed state -> logits; of some tokens only, if the head has a vocabulary of its own

At drafted tokens there is no feature of the target: there the head reads the state that it computed itself
at the token before (`recycles`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from treespec.features import Features
from treespec.models.cache import cache_argument


class HeadNet(PreTrainedModel):
    """A head's network.

    Args:
        config: sizes of its layers, as transformers' `LlamaConfig` states them.
        embedding: maps ids to embeddings.
        fuse: maps features `[T, F, H]` to states `[T, W]`.
        combine: maps embeddings and states to the input of the first layer.
        layers: decoder layers as in transformers' Llama.
        norm: applied to the last layer's output.
        head: maps the normed output to logits.
        recycles: which of its own states it reads at drafted tokens, as a feature of this network.
        width: W.
        vocab_size: V, the target's vocabulary.
        kept: the target's ids of the head's v tokens; None if v = V.
        rotary: the positions that the layers read; by default those of Llama.
        zero_first: whether the embedding at position 0 is zero.
        published: what the checkpoint's config.json says of the layers, if it is needed to write the head.
    """

    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(
        self,
        config: Any,
        *,
        embedding: nn.Module,
        fuse: nn.Module,
        combine: nn.Module,
        layers: Sequence[nn.Module],
        norm: nn.Module,
        head: nn.Module,
        recycles: Features,
        width: int,
        vocab_size: int,
        kept: Int[Tensor, " v"] | None = None,
        rotary: nn.Module | None = None,
        zero_first: bool = False,
        published: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config)
        rotary = LlamaRotaryEmbedding(config) if rotary is None else rotary
        self.model = HeadBody(config, embedding, combine, layers, norm, rotary, zero_first)
        self.fuse, self.lm_head = fuse, head
        self.recycles, self.state_width, self.logits_width = recycles, width, vocab_size
        self.published = published
        self.register_buffer("kept", kept, persistent=False)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True

    def get_input_embeddings(self) -> Any:
        """The embedding that the head reads."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        """The matrix that gives its logits."""
        return self.lm_head

    def states_of(self, tokens: Int[Tensor, "... T"]) -> Float[Tensor, "... T W"]:
        """States for tokens alone, with which the passes of a head are tested: their embeddings."""
        return self.model.embed_tokens(tokens)

    @no_type_check  # compilers trace it
    def forward(
        self, input_ids: Tensor, states: Tensor | None = None, **options: Any
    ) -> CausalLMOutput:
        """Logits over the target's vocabulary `[1, T, V]`; tokens that the head lacks have the least."""
        hidden = self.model(input_ids, states, **options)[0]
        logits = self.lm_head(hidden)
        if self.kept is not None:
            lowest = torch.finfo(logits.dtype).min
            everything = logits.new_full((*logits.shape[:-1], self.logits_width), lowest)
            logits = everything.index_copy(-1, self.kept, logits)
        return CausalLMOutput(logits=logits)


class HeadBody(nn.Module):
    """All of a head but its last matrix; see `HeadNet`."""

    def __init__(
        self,
        config: Any,
        embedding: nn.Module,
        combine: nn.Module,
        layers: Sequence[nn.Module],
        norm: nn.Module,
        rotary: nn.Module,
        zero_first: bool,
    ) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens, self.combine, self.norm = embedding, combine, norm
        self.layers = nn.ModuleList(layers)
        self.rotary_emb, self.zero_first = rotary, zero_first
        attention: Any = layers[0].self_attn
        self._cache_argument = cache_argument(attention)

    @no_type_check
    def forward(
        self,
        input_ids: Tensor,
        states: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = True,
        **options: Any,
    ) -> tuple[Tensor]:
        """The normed output of the last layer, `[1, T, h]`."""
        embeddings = self.embed_tokens(input_ids)
        states = embeddings if states is None else states
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if self.zero_first:
            embeddings = embeddings.masked_fill((position_ids == 0)[..., None], 0)
        hidden = self.combine(embeddings, states)
        positions = self.rotary_emb(hidden, position_ids=position_ids)
        for layer in self.layers:
            hidden = layer(
                hidden,
                position_ids=position_ids,
                position_embeddings=positions,
                attention_mask=attention_mask,
                use_cache=use_cache,
                **{self._cache_argument: past_key_values},
                **options,
            )
        return (self.norm(hidden),)
