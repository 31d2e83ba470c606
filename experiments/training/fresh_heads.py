"""Heads before training, written in their authors' layouts and taken from there by the usual readers.

So the network that is trained is the one that drafts. Matrices are drawn from a normal distribution with
the standard deviation of Llama's (0.02); norms begin at 1. Embedding and head are the target's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.draft.trained.block_files import ids_of, load_block
from treespec.draft.trained.block_head import BlockHead
from treespec.draft.trained.eagle3_files import IDS, default_boundaries, load_eagle3
from treespec.draft.trained.eagle_files import load_eagle
from treespec.draft.trained.head_model import HeadModel
from treespec.draft.trained.medusa import MedusaHeads, load_medusa
from treespec.draft.trained.target_parts import TargetParts
from treespec.draft.trained.vocabulary import OF_TARGET, tables_of
from treespec.draft.trained.writing import layer_settings, write_head
from treespec.errors import InvalidArgument
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel

SPREAD = 0.02
"""Standard deviation of fresh matrices."""


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a head's layers. Its width is the target's, whose embedding and head it shares.

    Args:
        inner: numbers between the two maps of a feed-forward layer.
        layers: number of layers.
        heads: heads of queries; None for as many as the target has.
        kv_heads: heads of keys and values; None for as many as the target has.
        head_dim: numbers of a head; None for as many as the target's.
    """

    inner: int
    layers: int = 1
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None

    def config(self, parts: TargetParts) -> Any:
        """As a configuration of transformers' Llama; positions turn as the target's do."""
        from transformers import LlamaConfig

        of = parts.config
        heads = self.heads or of.num_attention_heads
        kv_heads = self.kv_heads or of.num_key_value_heads
        if heads % kv_heads:
            raise InvalidArgument(
                f"{heads} heads of queries are no multiple of {kv_heads} of keys and values: set "
                "both `heads` and `kv_heads`"
            )
        return LlamaConfig(
            hidden_size=parts.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=self.head_dim or getattr(of, "head_dim", None) or parts.width // heads,
            max_position_embeddings=of.max_position_embeddings,
            rope_parameters=of.rope_parameters,
            rms_norm_eps=getattr(of, "rms_norm_eps", 1e-6),
        )


class Drawn:
    """Draws a head's tensors.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """A matrix that maps `columns` numbers to `rows`."""
        return SPREAD * torch.randn(rows, columns, generator=self._generator)

    def layer(self, prefix: str, config: Any, inputs: int) -> dict[str, Tensor]:
        """The matrices and the second norm of a decoder layer that attends to `inputs` numbers a token."""
        h, m, d = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
        shapes = {
            "self_attn.q_proj": (queries, inputs), "self_attn.k_proj": (keys, inputs),
            "self_attn.v_proj": (keys, inputs), "self_attn.o_proj": (h, queries),
            "mlp.gate_proj": (m, h), "mlp.up_proj": (m, h), "mlp.down_proj": (h, m),
        }  # fmt: skip
        tensors = {f"{prefix}{name}.weight": self.matrix(*shape) for name, shape in shapes.items()}
        return tensors | {f"{prefix}post_attention_layernorm.weight": torch.ones(h)}


def fresh_eagle(target: TransformersModel, sizes: LayerSizes, seed: int) -> HeadModel:
    """A head of EAGLE-1 before training: it begins by passing the target's state on."""
    parts, drawn = TargetParts.of(target), Drawn(seed)
    config, h = sizes.config(parts), parts.width
    tensors = drawn.layer("layers.0.", config, h)
    tensors["fc.weight"] = drawn.matrix(h, 2 * h) + torch.cat([torch.zeros(h, h), torch.eye(h)], 1)
    tensors["fc.bias"] = torch.zeros(h)
    stated = {"bias": True, "vocab_size": parts.vocab_size, **layer_settings(config)}
    with TemporaryDirectory() as folder:
        return load_eagle(_written(folder, stated, tensors), target)


def fresh_eagle3(
    target: TransformersModel,
    sizes: LayerSizes,
    seed: int,
    *,
    boundaries: tuple[int, ...],
    kept: Int[Tensor, " v"] | None = None,
) -> HeadModel:
    """A head of EAGLE-3 before training, which norms each of the states that it reads (as 3.1 does).

    Args:
        target: the target.
        sizes: of its layers.
        seed: of its matrices.
        boundaries: what it reads of the target.
        kept: tokens that it drafts, whose rows of the target's head it shares; None for all.
    """
    parts, drawn = TargetParts.of(target), Drawn(seed)
    config, h = sizes.config(parts), parts.width
    tensors = {"fc.weight": drawn.matrix(h, len(boundaries) * h), "norm.weight": torch.ones(h)}
    tensors |= {f"fc_norm.{i}.weight": torch.ones(h) for i in range(len(boundaries))}
    for i in range(sizes.layers):
        prefix = f"layers.{i}." if i else "midlayer."
        tensors |= drawn.layer(prefix, config, h if i else 2 * h)
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(h)
    tensors["midlayer.hidden_norm.weight"] = torch.ones(h)
    if kept is not None:
        tensors |= tables_of(kept.cpu(), parts.logits)
    stated = {
        "fc_norm": True,
        OF_TARGET: True,
        "draft_vocab_size": parts.logits if kept is None else len(kept),
        "target_hidden_size": h,
        IDS: list(boundaries),
        **layer_settings(config),
    }
    with TemporaryDirectory() as folder:
        return load_eagle3(_written(folder, stated, tensors), target)


def fresh_medusa(target: TransformersModel, heads: int, *, blocks: int = 1) -> MedusaHeads:
    """Medusa's heads before training: residual blocks of zeros, so each begins at the target's own row.

    Args:
        target: the target, whose head they share.
        heads: their number.
        blocks: residual blocks of each.
    """
    h, tensors = TargetParts.of(target).width, {}
    for name in (f"{head}.{block}" for head in range(heads) for block in range(blocks)):
        tensors[f"{name}.linear.weight"] = torch.zeros(h, h)
        tensors[f"{name}.linear.bias"] = torch.zeros(h)
    stated = {"medusa_num_heads": heads, "medusa_num_layers": blocks}
    with TemporaryDirectory() as folder:
        return load_medusa(_written(folder, stated, tensors), target)


def fresh_block(
    target: TransformersModel,
    sizes: LayerSizes,
    seed: int,
    *,
    block_size: int,
    mask_token: int,
    causal: bool,
    reads: Features | None = None,
    kept: Int[Tensor, " v"] | None = None,
) -> BlockHead:
    """A block drafter before training.

    Args:
        target: the target.
        sizes: of its layers.
        seed: of its matrices.
        block_size: tokens of a block, the anchor among them.
        mask_token: stands at the positions to predict: a token that texts do not contain.
        causal: whether a token of a block sees only those before it (JetSpec), or all (DFlash).
        reads: what it reads of the target; None for the boundaries that EAGLE-3 reads by default.
        kept: tokens that it drafts, whose rows of the target's head it shares; None for all.

    Raises:
        InvalidArgument: if it reads the embedding's output, or the last layer's before the norm.
    """
    parts, drawn = TargetParts.of(target), Drawn(seed)
    config, h = sizes.config(parts), parts.width
    if reads is None:  # of few layers some coincide
        few = {b for b in default_boundaries(parts.layers) if 0 < b < parts.layers}
        reads = Features(tuple(sorted(few)))
    ids = ids_of(reads.states, parts.layers)
    tensors = {"fc.weight": drawn.matrix(h, len(ids) * h)}
    tensors |= {name: torch.ones(h) for name in ("hidden_norm.weight", "norm.weight")}
    for i in range(sizes.layers):
        prefix = f"layers.{i}."
        tensors |= drawn.layer(prefix, config, h)
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(h)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{prefix}self_attn.{norm}.weight"] = torch.ones(config.head_dim)
    if kept is not None:
        tensors |= tables_of(kept.cpu(), parts.logits)
    stated = {
        OF_TARGET: True,
        "draft_vocab_size": parts.logits if kept is None else len(kept),
        "block_size": block_size,
        "num_target_layers": parts.layers,
        "dflash_config": {
            "mask_token_id": mask_token,
            "target_layer_ids": ids,
            "causal_head": causal,
        },
        **layer_settings(config),
    }
    with TemporaryDirectory() as folder:
        return load_block(_written(folder, stated, tensors), target)


def _written(folder: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    write_head(Path(folder), config, tensors)
    return folder
