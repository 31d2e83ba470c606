"""Decoder layers of heads, in the form of transformers' Llama or Qwen3, filled with a checkpoint's tensors.

Published heads are such layers with small changes: no first norm (EAGLE-1/2), projections that read
embedding and state side by side (EAGLE-3), biases (heads of Qwen2), norms of queries and keys (of Qwen3).
What a layer has is read off the tensors; what config.json says that it has must be there.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from treespec.draft.trained.checkpoint import Checkpoint
from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import LoadError, in_words

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
)
"""What a head's config.json must state."""

OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
)
"""What it may state; transformers' defaults stand for the rest."""

NORMS = ("input_layernorm", "post_attention_layernorm")


def layer_config(checkpoint: Checkpoint, within: str, layers: int, *, qk_norms: bool) -> Any:
    """Sizes of a head's layers, as a configuration of transformers.

    Args:
        checkpoint: the head.
        within: the object of config.json that holds them, with a dot at the end; empty for the whole file.
        layers: number of layers.
        qk_norms: whether queries and keys are normed, as in Qwen3.

    Raises:
        LoadError: if a size is missing or impossible, or layers have a sliding window.
    """
    given = {key: checkpoint.setting(within + key, int) for key in SIZES}
    for key in OPTIONAL:
        if (value := checkpoint.setting(within + key, object, None)) is not None:
            given[key] = value
    act = checkpoint.setting(within + "hidden_act", str, "silu")
    if act not in ACT2FN:
        raise LoadError(
            f"config.json of {checkpoint.name!r}: {within}hidden_act = {act!r}, but must be an activation "
            "that transformers knows, as 'silu'"
        )
    _refuse_windows(checkpoint, within, layers)
    try:
        made = (Qwen3Config if qk_norms else LlamaConfig)(
            vocab_size=1, num_hidden_layers=layers, bos_token_id=None, eos_token_id=None, **given
        )
        if not qk_norms and made.hidden_size % made.num_attention_heads and "head_dim" not in given:
            raise LoadError(
                f"config.json of {checkpoint.name!r}: hidden_size = {made.hidden_size} is no multiple of "
                f"num_attention_heads = {made.num_attention_heads}"
            )
        return made
    except LoadError:
        raise
    except Exception as error:  # transformers checks sizes by errors of several classes
        why = in_words(error, "transformers")
        raise LoadError(
            f"config.json of {checkpoint.name!r} is not that of a head: {why}"
        ) from error


def _refuse_windows(checkpoint: Checkpoint, within: str, layers: int) -> None:
    """Refuse layers that attend to a part of the text: those of Qwen from `max_window_layers` on do."""
    kinds = checkpoint.setting(f"{within}layer_types", list, [])
    windowed = checkpoint.setting(f"{within}use_sliding_window", bool, False)
    whole = checkpoint.setting(f"{within}max_window_layers", int, 0)
    width = checkpoint.setting(f"{within}sliding_window", int, None)
    by_flag = windowed and width is not None and whole < layers and not kinds
    if by_flag or any(kind != "full_attention" for kind in kinds):
        raise LoadError(
            f"{checkpoint.name!r} has layers of sliding attention, which are not implemented here"
        )


def decoder_layer(
    checkpoint: Checkpoint,
    prefix: str,
    config: Any,
    index: int,
    parts: TargetParts,
    inputs: int = 0,
) -> nn.Module:
    """A decoder layer that holds the checkpoint's tensors.

    Args:
        checkpoint: the head.
        prefix: of the layer's tensors, with a dot at the end.
        config: of the layers.
        index: number of the layer, by which it finds its rows in the cache.
        parts: of the target, whose dtype and device its weights get.
        inputs: numbers that queries, keys and values read; 0 for the width of the layer.
    """
    qk_norms = checkpoint.has(f"{prefix}self_attn.q_norm.weight")
    layer: Any = (Qwen3DecoderLayer if qk_norms else LlamaDecoderLayer)(config, index)
    h, m, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
    attention, mlp = bool(config.attention_bias), bool(getattr(config, "mlp_bias", False))
    for name, outputs, width, biased in (
        ("self_attn.q_proj", queries, inputs or h, attention),
        ("self_attn.k_proj", keys, inputs or h, attention),
        ("self_attn.v_proj", keys, inputs or h, attention),
        ("self_attn.o_proj", h, queries, attention),
        ("mlp.gate_proj", m, h, mlp),
        ("mlp.up_proj", m, h, mlp),
        ("mlp.down_proj", h, m, mlp),
    ):
        part, leaf = name.split(".")
        setattr(
            getattr(layer, part),
            leaf,
            taken_linear(checkpoint, prefix + name, (outputs, width), parts, biased=biased),
        )
    for norm in NORMS:
        weight = checkpoint.maybe(f"{prefix}{norm}.weight", (h,))
        setattr(layer, norm, nn.Identity() if weight is None else rms_norm(weight, config, parts))
    if qk_norms:
        for norm in ("q_norm", "k_norm"):
            weight = checkpoint.take(f"{prefix}self_attn.{norm}.weight", (d,))
            setattr(layer.self_attn, norm, rms_norm(weight, config, parts))
    return layer


def taken_linear(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    parts: TargetParts,
    *,
    biased: bool = False,
) -> nn.Linear:
    """A linear map of the checkpoint; with its bias if the file has one, which it must if `biased`."""
    weight = checkpoint.take(f"{name}.weight", shape)
    take_bias = checkpoint.take if biased else checkpoint.maybe
    return linear(weight, take_bias(f"{name}.bias", shape[:1]), parts)


def linear(weight: Tensor, bias: Tensor | None, parts: TargetParts) -> nn.Linear:
    """A linear map with this matrix, in the target's dtype and on its device."""
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(parts.moved(weight), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(parts.moved(bias), requires_grad=False)
    return made


def rms_norm(weight: Tensor, config: Any, parts: TargetParts) -> LlamaRMSNorm:
    """A norm that multiplies by this weight."""
    norm = LlamaRMSNorm(len(weight), eps=config.rms_norm_eps)
    norm.weight = nn.Parameter(parts.moved(weight), requires_grad=False)
    return norm


def embedding(weight: Tensor, parts: TargetParts) -> nn.Embedding:
    """An embedding with these rows."""
    return nn.Embedding.from_pretrained(parts.moved(weight))


def rotary(config: Any, parts: TargetParts) -> LlamaRotaryEmbedding:
    """The positions that Llama's layers read."""
    return LlamaRotaryEmbedding(config).to(parts.device)


class SideBySide(nn.Module):
    """Embedding and state, each normed or not, side by side, and mapped to the layers' width.

    Args:
        embedding_norm: of the embedding.
        state_norm: of the state.
        project: maps both, side by side.
        state_first: whether the state comes first.
    """

    def __init__(
        self,
        embedding_norm: nn.Module,
        state_norm: nn.Module,
        project: nn.Module,
        *,
        state_first: bool = False,
    ) -> None:
        super().__init__()
        self.embedding_norm, self.state_norm, self.project = embedding_norm, state_norm, project
        self.state_first = state_first

    @no_type_check
    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """`[1, T, h]` of embeddings and states `[1, T, ...]`."""
        parts = [self.embedding_norm(embeddings), self.state_norm(states)]
        return self.project(torch.cat(parts[::-1] if self.state_first else parts, dim=-1))


class OneFeature(nn.Module):
    """Reads the single feature of each token as it is."""

    @no_type_check
    def forward(self, features: Tensor) -> Tensor:
        """`[T, W]` of `[T, 1, W]`."""
        return features[:, 0]


class JoinedFeatures(nn.Module):
    """Projects a token's features, side by side, to the state that a head reads.

    Args:
        norms: one norm for each feature, or none.
        norm: of all features together.
        project: maps them to the state.
    """

    def __init__(self, norms: Sequence[nn.Module], norm: nn.Module, project: nn.Module) -> None:
        super().__init__()
        self.norms, self.norm, self.project = nn.ModuleList(norms), norm, project

    @no_type_check
    def forward(self, features: Tensor) -> Tensor:
        """`[T, W]` of `[T, F, H]`."""
        if len(self.norms):
            parts = zip(self.norms, features.unbind(1), strict=True)
            features = torch.stack([norm(part) for norm, part in parts], dim=1)
        return self.project(self.norm(features.flatten(1)))
