"""Draft models while they are trained: smaller language models that learn the target's distribution.

A draft of the target's width shares the target's embedding and head, which are not trained; one of a width
of its own has its own. It reads nothing of the target, so any text teaches it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedModel

from treespec.draft import ModelDrafter
from treespec.draft.trained.target_parts import TargetParts
from treespec.draft.trained.writing import require_empty
from treespec.errors import InvalidArgument
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training.fresh_heads import LayerSizes
from treespec.experiments.training.losses import LOSSES, Loss
from treespec.experiments.training.on_policy import continued
from treespec.experiments.training.packing import Packed
from treespec.experiments.training.students.student import (
    Learned,
    Student,
    mean_of,
    open_to_training,
)
from treespec.experiments.training.teacher import Taught
from treespec.features import Features
from treespec.files import TEMPORARY
from treespec.models.load import Pair
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Growth
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape


def fresh_draft_model(
    target: TransformersModel, sizes: LayerSizes, seed: int, *, width: int | None = None
) -> TransformersModel:
    """A Llama before training, as transformers draws it, with the target's tokens and positions.

    Args:
        target: the target.
        sizes: of its layers.
        seed: of its weights.
        width: numbers of a hidden state, for a draft with an embedding of its own, which is its head as
            well; None for the target's width, with the target's embedding and head.
    """
    parts = TargetParts.of(target)
    config = sizes.config(parts)
    config.vocab_size = parts.vocab_size
    config.hidden_size = width or parts.width
    config.tie_word_embeddings = width is not None or parts.embedding.weight is parts.head.weight
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, key, getattr(parts.config, key, None))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    if width is None:
        model.get_input_embeddings().weight = parts.embedding.weight
        model.get_output_embeddings().weight = parts.head.weight
    return TransformersModel(model.to(parts.device), vocab_size=parts.logits)


class DraftModelStudent(Student):
    """A draft model.

    Args:
        draft: the model: a fresh one, or one to go on from. If its embedding equals the target's, it is
            the target's from then on, and not trained.
        pair: whose target it drafts for.
        loss: of each row.
        on_policy: share of the batches in which the draft goes on with the texts itself (`on_policy`); in
            the others they are as they are given.

    Raises:
        InvalidArgument: for on-policy batches with the loss `cross_entropy`, which learns the texts.
    """

    reads = Features()

    def __init__(
        self, draft: TransformersModel, pair: Pair, *, loss: Loss, on_policy: float = 0.0
    ) -> None:
        super().__init__()
        if on_policy and loss is LOSSES["cross_entropy"]:
            raise InvalidArgument(
                f"on_policy = {on_policy:g} with the loss cross_entropy: the draft would learn what it "
                "writes itself; choose another loss, or leave on_policy out"
            )
        self._draft, self._pair, self._loss, self._on_policy = draft, pair, loss, on_policy
        draft.model.requires_grad_(False)
        _share(draft.model, pair.target.model)
        net: Any = plain_twin(draft)
        self.net = net
        open_to_training(net, pair.target.model)
        self._width = min(net.get_output_embeddings().weight.shape[0], pair.target.vocab_size)
        narrow = self._width < pair.target.vocab_size
        self.kept = torch.arange(self._width, device=draft.device) if narrow else None

    def batch(self, packed: Packed, generator: torch.Generator) -> Packed:
        """The batch of the texts, or one of the draft's own."""
        if not self._on_policy or torch.rand((), generator=generator) >= self._on_policy:
            return packed
        return continued(
            self.net, packed, generator, vocab_size=self._width, ends=self._pair.end_tokens
        )

    def logits(self, packed: Packed) -> Float[Tensor, "B T v"]:
        """After each token of each text."""
        passed = self.net(
            input_ids=packed.ids,
            attention_mask=packed.mask(),
            position_ids=packed.positions,
            use_cache=False,
        )
        return passed.logits[..., : self._width]

    def forward(self, taught: Taught, generator: torch.Generator) -> Learned:
        del generator
        counted = taught.packed.counted(1)
        loss = mean_of(self._loss(taught.labels(1, counted), self.logits(taught.packed)[counted]))
        return Learned(loss, loss.detach()[None])

    def drafter(self, tree: Growth | TreeShape) -> ModelDrafter:
        return ModelDrafter(self._draft, tree, Law.DETERMINISTIC, Sampling(0.0))

    def save(self, folder: Path) -> None:
        """Write a model folder of transformers with the tokenizer; see `Student.save`.

        It holds the embedding too, also the target's, in the precision of training.
        """
        require_empty(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        end = sorted(self._pair.end_tokens) or None
        self.net.generation_config = GenerationConfig(eos_token_id=end)
        with TemporaryDirectory(prefix=TEMPORARY, dir=folder.parent) as temporary:
            whole = Path(temporary) / folder.name
            self.net.save_pretrained(whole)
            self._pair.tokenizer.save_pretrained(whole)
            whole.rename(folder)  # which is missing or empty


def _share(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Let a draft use its target's own embedding and head if both are equal."""
    modules: list[tuple[Any, Any]] = [
        (draft.get_input_embeddings(), target.get_input_embeddings()),
        (draft.get_output_embeddings(), target.get_output_embeddings()),
    ]
    if all(_equal(own.weight, theirs.weight) for own, theirs in modules):
        for own, theirs in modules:
            own.weight = theirs.weight


def _equal(own: Tensor, theirs: Tensor) -> bool:
    return own.shape == theirs.shape and torch.equal(own, theirs.to(own.dtype))
