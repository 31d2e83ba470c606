"""Block drafters, causal and two-way, while trained.

Several anchors of each row of a batch are read in one pass: the blocks' tokens are the queries, the text's
rows before each anchor and the block's own are what they see.
"""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft import BlockDraft, ModelDrafter
from treespec.draft.trained.block_files import store_block
from treespec.draft.trained.block_head import BlockHead
from treespec.experiments.training.losses import Loss
from treespec.experiments.training.packing import Packed
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


class BlockStudent(Student):
    """A head that fills a block of masks after an anchor.

    DFlash (arXiv:2602.06036) learns the tokens of texts, JetSpec (arXiv:2606.18394) the target's
    distributions, as ours does. Anchors are drawn anew in each batch, as DFlash draws them: a block after
    every token would cost as many times more as it is long.

    Args:
        head: the head, read for its target.
        target: the target.
        anchors: N, blocks of each row of a batch.
        loss: of each row.
        kept: tokens that it is trained to predict; None for all that it has rows for.
        share: weight of a position's loss, as a multiple of that of the position before it. DFlash's decay
            with a gamma is the share exp(-1 / gamma).
    """

    def __init__(
        self,
        head: BlockHead,
        target: TransformersModel,
        *,
        anchors: int,
        loss: Loss,
        kept: Int[Tensor, " v"] | None = None,
        share: float = 0.8,
    ) -> None:
        super().__init__()
        self.net, self.anchors, self.share, self._loss = head, anchors, share, loss
        self.reads, self.kept = head.contract.reads, kept if head.kept is None else head.kept
        open_to_training(head, target.model)
        if head.contract.head == "target's":
            head.head.requires_grad_(False)

    def drafter(self, tree: Growth | TreeShape) -> ModelDrafter:
        return BlockDraft(self.net, tree, Law.DETERMINISTIC, Sampling(0.0))

    def save(self, folder: Path) -> None:
        store_block(self.net, folder)

    def drawn(self, packed: Packed, generator: torch.Generator) -> Int[Tensor, "B N"]:
        """Places of random anchors in their rows, as many as rows are long at most.

        A draft is trained on the token after each, but in rows with fewer such tokens than N.
        """
        chances = torch.rand(packed.ids.shape, generator=generator).to(packed.ids.device)
        chances = chances.masked_fill(~packed.counted(1), -1.0)
        return chances.topk(min(self.anchors, chances.shape[1])).indices

    def hidden(self, taught: Taught, anchors: Int[Tensor, "B N"]) -> Float[Tensor, "B N D h"]:
        """What the head's matrix reads at each position after each anchor."""
        packed = taught.packed
        places = torch.arange(packed.ids.shape[1], device=anchors.device)
        text = packed.text.gather(1, anchors)[..., None]
        before = (packed.text[:, None] == text) & (places < anchors[..., None])
        return self.net.at_anchors(taught.features, packed.positions, packed.ids, anchors, before)

    def logits(self, hidden: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows v"]:
        """Of the tokens that it is trained to predict."""
        kept = None if self.net.kept is not None else self.kept
        return logits_of(self.net.head, hidden, kept, self.net.vocab_size)

    def forward(self, taught: Taught, generator: torch.Generator) -> Learned:
        packed = taught.packed
        anchors = self.drawn(packed, generator)
        hidden, follows = self.hidden(taught, anchors), packed.counted(1).gather(1, anchors)
        losses = []
        for i in range(self.net.depth):
            where = packed.counted(1 + i).gather(1, anchors) & follows
            labels = taught.labels_after(where.nonzero()[:, 0], anchors[where] + i)
            losses.append(mean_of(self._loss(labels, self.logits(hidden[:, :, i][where]))))
        return learned(losses, self.share)
