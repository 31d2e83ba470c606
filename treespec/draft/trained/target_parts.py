"""What heads borrow of the target: its embedding and its head, and the sizes that must agree."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from treespec.errors import LoadError, UnsupportedModel
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel

__all__ = ["TargetParts", "require_boundaries", "require_width"]


@dataclass(frozen=True, eq=False)
class TargetParts:
    """Modules and sizes of a target.

    Args:
        width: H, numbers of a hidden state.
        vocab_size: rows of its embedding.
        logits: V, the width of its logits.
        layers: L, number of its layers.
        embedding: maps ids to embeddings of width H.
        head: maps final states to logits, without the scaling or softcap that some models add.
        config: its configuration (of the text model).
        dtype: of its weights.
        device: where its final state is.
    """

    width: int
    vocab_size: int
    logits: int
    layers: int
    embedding: nn.Module
    head: nn.Module
    config: Any
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, target: object) -> "TargetParts":
        """The parts of a loaded target.

        Raises:
            UnsupportedModel: if it is not a transformers model, or has no single embedding and head.
        """
        if not isinstance(target, TransformersModel):
            raise UnsupportedModel(
                f"a trained head needs a transformers model as target, not a {type(target).__name__}"
            )
        model: Any = target.model
        config = model.config.get_text_config(decoder=True)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if not isinstance(getattr(head, "weight", None), torch.Tensor):
            raise UnsupportedModel(
                f"{model.config.model_type} models have no head that a trained head could share"
            )
        return cls(
            width=config.hidden_size,
            vocab_size=embedding.weight.shape[0],
            logits=target.vocab_size,
            layers=target.layer_count,
            embedding=embedding,
            head=head,
            config=config,
            dtype=model.dtype,
            device=model.device,
        )


def require_width(name: str, width: int, parts: TargetParts) -> None:
    """Refuse a head of another width than the target's, whose embedding or states it reads.

    Raises:
        LoadError: naming both widths.
    """
    if width != parts.width:
        raise LoadError(
            f"{name!r} is a head of width {width} (hidden_size), but the target's is {parts.width}: "
            "it is a head for another target"
        )


def require_boundaries(name: str, reads: Features, parts: TargetParts) -> None:
    """Refuse a head that reads layers which the target does not have.

    Raises:
        LoadError: naming the boundary and the number of layers.
    """
    if (last := max(reads.boundaries, default=0)) > parts.layers:
        raise LoadError(
            f"{name!r} reads boundary {last}, but the target has {parts.layers} layers: it is a head for "
            "another target, or counts layers otherwise"
        )
