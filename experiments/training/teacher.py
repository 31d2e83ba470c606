"""What a target teaches: its hidden states and next-token distributions on given texts, in one pass."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import UnsupportedModel
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training.packing import Packed
from treespec.features import Features
from treespec.models.hidden_states import HiddenStates
from treespec.models.transformers_model import TransformersModel

__all__ = ["Taught", "Teacher"]


@dataclass(frozen=True)
class Taught:
    """A batch and what the target computes on it.

    Args:
        packed: the batch.
        features: what the draft reads of the target, in the order of its `reads`.
        logs: the target's log-probabilities of the kept tokens *after* each token, at temperature 1.
            Those that are not kept are missing, so the probabilities of a row may sum to less than 1.
    """

    packed: Packed
    features: Float[Tensor, "B T F H"]
    logs: Float[Tensor, "B T v"]


class Teacher:
    """A target that teaches a draft.

    Args:
        target: the target.
        reads: what the draft reads of it.
        kept: the tokens that the draft is trained to predict; None for all.

    Raises:
        UnsupportedModel: if its logits are not its head's, because a scale or softcap is added.
    """

    def __init__(
        self, target: TransformersModel, reads: Features, kept: Int[Tensor, " v"] | None = None
    ) -> None:
        self.parts = TargetParts.of(target)
        if self.parts.missing:
            raise UnsupportedModel(
                f"{target.model.config.model_type} models cannot teach a draft: their logits are changed "
                f"after the head (a draft would be trained {', '.join(self.parts.missing)})"
            )
        model: Any = plain_twin(target)
        self._body, self._kept = model.get_submodule(model.base_model_prefix), kept
        self._states = HiddenStates(model, Features(reads.boundaries, "post"))
        self._features = len(reads.states)

    @torch.no_grad()
    def __call__(self, packed: Packed) -> Taught:
        """One pass over a batch."""
        with self._states.watched():
            self._body(
                input_ids=packed.ids,
                attention_mask=packed.mask().to(self.parts.dtype),
                position_ids=packed.positions,
                use_cache=False,
            )
            states = self._states.taken_of_batch()
        logits = self.parts.head(states[:, :, -1])[..., : self.parts.logits].float()
        whole = logits.logsumexp(-1, keepdim=True)
        kept = logits if self._kept is None else logits[..., self._kept]
        return Taught(packed, states[:, :, : self._features], kept - whole)
