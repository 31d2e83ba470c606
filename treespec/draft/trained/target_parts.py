"""What heads borrow of the target: its embedding and its head, and the sizes that must agree."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from treespec.errors import LoadError, UnsupportedModel
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel

AFTER_THE_HEAD = {
    "final_logit_softcapping": "softcap",
    "logit_scale": "logit scale",
    "logits_scaling": "logit scale",
}
"""What targets do to the logits of their heads (Gemma 2, Cohere, Granite), by the key of the config."""


@dataclass(frozen=True, eq=False)
class TargetParts:
    """Modules and sizes of a target.

    Args:
        width: H, numbers of a hidden state.
        vocab_size: rows of its embedding.
        logits: V, the width of its logits.
        layers: L, number of its layers.
        embedding: maps ids to embeddings of width H.
        head: maps final states to logits, without the scaling or softcap that some models add (`missing`).
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
            UnsupportedModel: if it is not a transformers model, or has no single embedding and head, or is
                spread over several devices.
        """
        if not isinstance(target, TransformersModel):
            raise UnsupportedModel(
                f"a trained head needs a transformers model as target, not a {type(target).__name__}"
            )
        model: Any = target.model
        _require_one_device(model)
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

    @property
    def missing(self) -> tuple[str, ...]:
        """What `head` lacks of the target's logits, as notes for the contract of a head that shares it."""
        return tuple(
            f"without the target's {what}"
            for key, what in AFTER_THE_HEAD.items()
            if getattr(self.config, key, None) not in (None, 1)
        )

    def moved(self, weight: Tensor) -> Tensor:
        """A head's weight, in the target's dtype and on its device.

        What was read is moved one by one: a network also holds modules of the target, which stay where they
        are.
        """
        return weight.to(self.device, self.dtype)


def _require_one_device(model: Any) -> None:
    """Refuse a model whose embedding, states and head may be in different places."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    places = places if len(places) > 1 else {str(weight.device) for weight in model.parameters()}
    if len(places) > 1:
        raise UnsupportedModel(
            f"the target's weights are on several devices ({', '.join(sorted(places))}), and a head "
            "reads its embedding, states and head on one: load it onto a single device"
        )
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        raise UnsupportedModel(
            "the target's weights are sharded over several processes (tensor parallelism), which trained "
            "heads cannot share: load it whole, onto a single device"
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
