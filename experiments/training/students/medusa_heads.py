"""Medusa's heads, each for one of the next positions, while trained."""

from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.draft import Medusa, ModelDrafter
from treespec.draft.trained.medusa import MedusaHeads, save_medusa
from treespec.experiments.training.losses import Loss
from treespec.experiments.training.students.student import (
    Learned,
    Student,
    learned,
    mean_of,
    open_to_training,
)
from treespec.experiments.training.teacher import Taught, logits_of
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Growth
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape


class MedusaStudent(Student):
    """Heads on the target's final state (arXiv:2401.10774).

    At token t, head k >= 1 is to say what the target says after token t + k. Ours differs in that it learns
    the target's distributions, where the authors learn the tokens of texts.

    Args:
        heads: the heads, read for their target.
        target: the target.
        loss: of each row.
        kept: tokens that they are trained to predict; None for all.
        share: weight of a head's loss, as a multiple of that of the head before it.
    """

    def __init__(
        self,
        heads: MedusaHeads,
        target: TransformersModel,
        *,
        loss: Loss,
        kept: Int[Tensor, " v"] | None = None,
        share: float = 0.8,
    ) -> None:
        super().__init__()
        self.net, self.share, self._loss = heads, share, loss
        self.reads, self.kept = heads.contract.reads, kept
        open_to_training(heads, target.model)

    def drafter(self, tree: Growth | TreeShape) -> ModelDrafter:
        return Medusa(self.net, tree, Law.DETERMINISTIC, Sampling(0.0))

    def save(self, folder: Path) -> None:
        save_medusa(self.net, folder)

    def forward(self, taught: Taught, generator: torch.Generator) -> Learned:
        del generator
        states, losses = taught.features[:, :, 0], []
        for head in range(self.net.depth):
            where = taught.packed.counted(2 + head)
            logits = logits_of(
                self.net.matrix(head),
                self.net.hidden(states[where], head),
                self.kept,
                self.net.vocab_size,
            )
            losses.append(mean_of(self._loss(taught.labels(2 + head, where), logits)))
        return learned(losses, self.share)
