"""Heads that read the target's state and, further down, their own: EAGLE-1 and EAGLE-3, while trained.

A head that reads the target's states in training, but its own when it drafts, meets states that it never
saw. So it is trained as it drafts (EAGLE-3's training-time test, arXiv:2503.01840; HASS, arXiv:2408.15766,
does so for EAGLE-1): at each position it takes several steps, each on the state that the step before it
left there. Step j at pair t, the state of token t beside token t + 1, reads token t + 1 + j and predicts
the one after it. It sees the first steps of all pairs up to t, made of true states, and its own earlier
steps: just what a tree's node at depth j sees.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from treespec.draft import Eagle, Eagle3, ModelDrafter
from treespec.draft.trained.eagle3_files import store_eagle3
from treespec.draft.trained.eagle_files import save_eagle
from treespec.draft.trained.head_model import HeadModel
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training.losses import Loss
from treespec.experiments.training.students import steps_attention
from treespec.experiments.training.students.student import (
    Learned,
    Student,
    ahead,
    learned,
    mean_of,
    open_to_training,
)
from treespec.experiments.training.teacher import Taught, logits_of
from treespec.models.hidden_states import HiddenStates
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Growth
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape


@dataclass(frozen=True)
class Step:
    """One step of a head at all pairs of a batch.

    Args:
        hidden: what its head reads.
        state: what its next step reads.
        counted: whether the token that it predicts is one that a draft is trained on.
    """

    hidden: Float[Tensor, "B N h"]
    state: Float[Tensor, "B N W"]
    counted: Bool[Tensor, "B N"]


class HeadStudent(Student):
    """An autoregressive head.

    Args:
        head: the head, read for its target.
        target: the target.
        steps: steps at each position.
        loss: of each row.
        kept: tokens that it is trained to predict; None for all that it has rows for.
        share: weight of a step's loss, as a multiple of that of the step before it.
    """

    source: type[Eagle | Eagle3]
    """Drafts with the head."""
    write: Callable[[HeadModel, Path], None]

    def __init__(
        self,
        head: HeadModel,
        target: TransformersModel,
        *,
        steps: int,
        loss: Loss,
        kept: Int[Tensor, " v"] | None = None,
        share: float = 1.0,
    ) -> None:
        super().__init__()
        self._head, self._loss = (head,), loss  # not a part of this module: its network is
        net: Any = plain_twin(head)
        net.set_attn_implementation(steps_attention.NAME)
        self.net, self.steps, self.share = net, steps, share
        self.reads, self.kept = head.contract.reads, kept if net.kept is None else net.kept
        open_to_training(net, target.model)
        if head.contract.head == "target's":
            net.lm_head.requires_grad_(False)
        self._states = HiddenStates(net, net.recycles)

    def drafter(self, tree: Growth | TreeShape) -> ModelDrafter:
        return self.source(self._head[0], tree, Law.DETERMINISTIC, Sampling(temperature=0.0))

    def save(self, folder: Path) -> None:
        type(self).write(self._head[0], folder)

    def rollout(self, taught: Taught) -> Iterator[Step]:
        """The steps at every pair of a batch, one after the other."""
        packed, cache = taught.packed, DynamicCache()
        states = self.net.fuse(taught.features.flatten(0, 1)).unflatten(0, packed.ids.shape)[:, :-1]
        first = packed.mask()[:, :, :-1, :-1]
        for step in range(self.steps):
            with self._states.watched():
                hidden = self.net.model(
                    ahead(packed.ids, 1 + step)[:, :-1],
                    states,
                    position_ids=packed.positions[:, :-1] + step,
                    attention_mask=first,
                    past_key_values=cache,
                )[0]
                states = self._states.taken_of_batch()[:, :, 0]
            yield Step(hidden, states, packed.counted(2 + step)[:, :-1])

    def logits(self, hidden: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows v"]:
        """Of the tokens that it is trained to predict."""
        kept = None if self.net.kept is not None else self.kept
        return logits_of(self.net.lm_head, hidden, kept, self.net.logits_width)

    def forward(self, taught: Taught, generator: torch.Generator) -> Learned:
        del generator
        losses = [
            mean_of(self.loss_of(taught, step, j)) for j, step in enumerate(self.rollout(taught))
        ]
        return learned(losses, self.share)

    def loss_of(self, taught: Taught, step: Step, j: int) -> Float[Tensor, " R"]:
        """The loss of step j at each pair that is counted."""
        labels = taught.labels(2 + j, step.counted)
        return self._loss(labels, self.logits(step.hidden[step.counted]))


class Eagle3Student(HeadStudent):
    """A head of EAGLE-3: the loss of its distributions alone, over all steps (arXiv:2503.01840)."""

    source = Eagle3
    write = store_eagle3


class EagleStudent(HeadStudent):
    """A head of EAGLE-1, which predicts the target's next state, and by it the next token.

    The loss is that of the states (smooth L1) and a tenth of that of the distributions, as in EAGLE-1
    (arXiv:2401.15077, equation of section 3.2); ours counts it over several steps, as HASS does.
    """

    source = Eagle
    write = save_eagle

    OF_DISTRIBUTIONS = 0.1

    def loss_of(self, taught: Taught, step: Step, j: int) -> Float[Tensor, " R"]:
        right = ahead(taught.features[:, :, 0], 1 + j)[:, :-1][step.counted].float()
        state = step.state[step.counted].float()
        of_states = F.smooth_l1_loss(state, right, reduction="none").mean(-1)
        return of_states + self.OF_DISTRIBUTIONS * super().loss_of(taught, step, j)
