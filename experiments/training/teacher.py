"""What a target teaches: its hidden states and next-token distributions on given texts, in one pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import UnsupportedModel
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training.losses import Labels
from treespec.experiments.training.packing import Packed
from treespec.features import Features
from treespec.models.hidden_states import HiddenStates
from treespec.models.support import local_attention
from treespec.models.transformers_model import TransformersModel


@dataclass(frozen=True)
class Taught:
    """A batch and what the target computes on it.

    Args:
        packed: the batch.
        features: what the draft reads of the target, in the order of its `reads`.
        logs: the target's log-probabilities of the kept tokens *after* each token, at temperature 1.
            Those that are not kept are missing, so the probabilities of a row may sum to less than 1.
        tokens: the token *after* each token, by its place among the kept ones; -1 if it is not kept, and
            after the last token.
    """

    packed: Packed
    features: Float[Tensor, "B T F H"]
    logs: Float[Tensor, "B T v"]
    tokens: Int[Tensor, "B T"]

    def labels(self, ahead: int, where: Bool[Tensor, "B N"]) -> Labels:
        """What chosen rows are trained to predict: the token so many places after theirs.

        Args:
            ahead: places, at least 1.
            where: the rows, by their place in the batch; each with such a token (`Packed.counted`).
        """
        rows, places = where.nonzero(as_tuple=True)
        return self.labels_after(rows, places + ahead - 1)

    def labels_after(self, rows: Int[Tensor, " R"], places: Int[Tensor, " R"]) -> Labels:
        """What a row of a draft is trained to predict after the token at each of these places."""
        return Labels(self.logs[rows, places], self.tokens[rows, places])


@dataclass(frozen=True)
class Known:
    """What a target computes on a batch.

    Args:
        states: what a draft reads, and last the final state after the norm.
        normalisers: the logarithm of the sum of the exponentials of all logits after each token; None if
            they were not needed.
    """

    states: Float[Tensor, "B T F H"]
    normalisers: Float[Tensor, "B T 1"] | None = None


class TargetPass:
    """A target that reads batches.

    Args:
        target: the target.
        reads: what a draft reads of it.

    Raises:
        UnsupportedModel: if its logits are not its head's, because a scale or softcap is added.
    """

    def __init__(self, target: TransformersModel, reads: Features) -> None:
        self.parts = TargetParts.of(target)
        if self.parts.missing:
            raise UnsupportedModel(
                f"{target.model.config.model_type} models cannot teach a draft: their logits are changed "
                f"after the head (a draft would be trained {', '.join(self.parts.missing)})"
            )
        model: Any = plain_twin(target)
        self._body = model.get_submodule(model.base_model_prefix)
        self._states = HiddenStates(model, Features(reads.boundaries, "post"))
        self.states = self._states.states
        """The states in their order."""

    @torch.no_grad()
    def __call__(self, packed: Packed) -> Known:
        """One pass over a batch."""
        with self._states.watched():
            self._body(
                input_ids=packed.ids,
                attention_mask=packed.mask().to(self.parts.dtype),
                position_ids=packed.positions,
                use_cache=False,
            )
            return Known(self._states.taken_of_batch())

    @torch.no_grad()
    def with_normalisers(self, packed: Packed) -> Known:
        """One pass, and the normalisers of its logits."""
        known = self(packed)
        logits = logits_of(self.parts.head, known.states[:, :, -1], None, self.parts.logits)
        return Known(known.states, logits.float().logsumexp(-1, keepdim=True))


class Teacher:
    """What a draft is taught, of what its target computes.

    Args:
        target: the target.
        reads: what the draft reads of it.
        kept: the tokens that the draft is trained to predict; None for all.
        stored: gives what the target has computed on the texts; None to compute it for each batch.

    Raises:
        UnsupportedModel: see `TargetPass`.
    """

    def __init__(
        self,
        target: TransformersModel,
        reads: Features,
        kept: Int[Tensor, " v"] | None = None,
        stored: Callable[[Packed], Known] | None = None,
    ) -> None:
        self._pass, self._stored, self._kept = TargetPass(target, reads), stored, kept
        self.parts = self._pass.parts
        self._place = _places(self.parts.vocab_size, kept).to(self.parts.device)
        self._features = len(reads.states)

    @torch.no_grad()
    def __call__(self, packed: Packed) -> Taught:
        """What a batch teaches; texts that a draft wrote itself are always read anew."""
        read = self._pass if self._stored is None or packed.place is None else self._stored
        known = read(packed)
        whole, post = known.normalisers, known.states[:, :, -1]
        rows = None if whole is None else self._kept
        logits = logits_of(self.parts.head, post, rows, self.parts.logits).float()
        if whole is None:
            whole = logits.logsumexp(-1, keepdim=True)
            logits = logits if self._kept is None else logits[..., self._kept]
        tokens = F.pad(self._place[packed.ids[:, 1:]], (0, 1), value=-1)
        return Taught(packed, known.states[:, :, : self._features], logits - whole, tokens)


def logits_of(
    matrix: Any, hidden: Float[Tensor, "*rows h"], kept: Int[Tensor, " v"] | None, width: int
) -> Float[Tensor, "*rows v"]:
    """Logits of these rows of a matrix; None for its first rows, `width` at most."""
    if kept is None:
        return matrix(hidden)[..., :width]
    return F.linear(hidden, matrix.weight[kept])


def require_sight(target: TransformersModel, length: int) -> None:
    """Refuse rows in which a token of the target would see more before it than the target lets it see.

    Raises:
        ConfigError: if some layers see fewer tokens than a row has.
    """
    limit = local_attention(target.model.config, length)
    if limit is not None:
        raise ConfigError(
            f"length = {length}, but not all layers of the target see so many tokens ({limit}): a draft "
            "would be taught what the target does not compute; set length to what they see at most, or "
            "name another target"
        )


def _places(vocab_size: int, kept: Int[Tensor, " v"] | None) -> Int[Tensor, " V"]:
    """The place of each token among the kept ones, -1 for the others."""
    if kept is None:
        return torch.arange(vocab_size)
    places = torch.full((vocab_size,), -1)
    places[kept.cpu()] = torch.arange(len(kept))
    return places
