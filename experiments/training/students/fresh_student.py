"""The student of each family before training, by the settings of a config."""

from jaxtyping import Int
from torch import Tensor

from treespec.draft.trained.eagle3_files import default_boundaries
from treespec.experiments.errors import ConfigError
from treespec.experiments.training.families import (
    BlockHeadDraft,
    DraftModelDraft,
    Eagle3Draft,
    EagleDraft,
    LayersDraft,
    MedusaHeadsDraft,
    Trainee,
)
from treespec.experiments.training.fresh_heads import (
    LayerSizes,
    fresh_block,
    fresh_eagle,
    fresh_eagle3,
    fresh_medusa,
)
from treespec.experiments.training.losses import LOSSES
from treespec.experiments.training.students.autoregressive import Eagle3Student, EagleStudent
from treespec.experiments.training.students.blocks import BlockStudent
from treespec.experiments.training.students.draft_models import DraftModelStudent, fresh_draft_model
from treespec.experiments.training.students.medusa_heads import MedusaStudent
from treespec.experiments.training.students.student import Student
from treespec.models.load import Pair


def fresh_student(draft: Trainee, pair: Pair, kept: Int[Tensor, " v"] | None, seed: int) -> Student:
    """A draft before training.

    Args:
        draft: its settings.
        pair: whose target it drafts for.
        kept: tokens that it is trained to predict; None for all. Families without a vocabulary of their
            own draft every token.
        seed: of its weights; Medusa's begin at the target's own rows.

    Raises:
        ConfigError: if the settings do not fit the target.
    """
    target, loss = pair.target, LOSSES[draft.loss]
    match draft:
        case EagleDraft():
            head = fresh_eagle(target, _sizes(draft), seed)
            return EagleStudent(head, target, steps=draft.steps, loss=loss, share=draft.share)
        case Eagle3Draft():
            head = fresh_eagle3(
                target, _sizes(draft), seed, boundaries=_boundaries(draft, pair), kept=kept
            )
            return Eagle3Student(head, target, steps=draft.steps, loss=loss, share=draft.share)
        case MedusaHeadsDraft():
            heads = fresh_medusa(target, draft.count, blocks=draft.blocks)
            return MedusaStudent(heads, target, loss=loss, share=draft.share)
        case BlockHeadDraft():
            if draft.mask_token >= (ids := target.vocab_size):
                raise ConfigError(
                    f"draft {draft.label!r}: mask_token = {draft.mask_token}, but the target has {ids:,} "
                    "tokens"
                )
            block = fresh_block(
                target, _sizes(draft), seed, block_size=draft.block_size,
                mask_token=draft.mask_token, causal=draft.causal, kept=kept,
            )  # fmt: skip
            return BlockStudent(block, target, anchors=draft.anchors, loss=loss, share=draft.share)
        case DraftModelDraft():
            model = fresh_draft_model(target, _sizes(draft), seed, width=draft.width)
            return DraftModelStudent(model, pair, loss=loss, on_policy=draft.on_policy)


def _sizes(draft: LayersDraft) -> LayerSizes:
    return LayerSizes(draft.inner, draft.layers, draft.heads, draft.kv_heads, draft.head_dim)


def _boundaries(draft: Eagle3Draft, pair: Pair) -> tuple[int, ...]:
    """What an EAGLE-3 head reads of its target."""
    layers = pair.target.layer_count
    read = draft.boundaries or default_boundaries(layers)
    if max(read) > layers or len(set(read)) < len(read):
        raise ConfigError(
            f"draft {draft.label!r}: boundaries = {list(read)}, but the target's are 0..{layers}, "
            "each at most once: name others"
        )
    return tuple(read)
