"""What heads borrow of the target: its embedding and its head, and the sizes that must agree."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from treespec.errors import UnsupportedModel
from treespec.models.transformers_model import TransformersModel

__all__ = ["TargetParts"]


@dataclass(frozen=True, eq=False)
class TargetParts:
    """Modules and sizes of a target.

    Args:
        width: H, numbers of a hidden state.
        vocab_size: V, rows of its embedding.
        layers: L, number of its layers.
        embedding: maps ids to embeddings of width H.
        head: maps final states to logits, without the scaling or softcap that some models add.
        config: its configuration (of the text model).
        dtype: of its weights.
        device: where its final state is.
    """

    width: int
    vocab_size: int
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
            config.hidden_size, embedding.weight.shape[0], target.layer_count, embedding, head, config,
            model.dtype, model.device,
        )  # fmt: skip
