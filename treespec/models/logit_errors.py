"""How far logits of one way to run a model are from those of another, in all trials at load."""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel


def of_its_tokens(model: PreTrainedModel, logits: Float[Tensor, "T V"]) -> Float[Tensor, "T v"]:
    """The logits of the tokens that a model has rows for, by which its passes are compared.

    Beside them a head with a vocabulary of its own has the lowest number, next to which no error shows.
    """
    kept: Any = getattr(model, "kept", None)
    return logits if kept is None else logits[:, kept]


def errors(logits: Float[Tensor, "N V"], truth: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """Distance between centred rows, relative to the norm of the true row; in float64."""
    truth, logits = (x.double() - x.double().mean(-1, keepdim=True) for x in (truth, logits))
    return (logits - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-30)
