"""The drafts that can be trained, as configs name them: the settings of each family.

`students.fresh_student` makes the drafts.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from treespec.experiments.config.base import FileName, Tokens
from treespec.reading_models import Strict

Size = Annotated[int, Field(strict=True, ge=1, le=2**20)]
Boundary = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Depth = Annotated[int, Field(strict=True, ge=1, le=32)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
LossName = Literal[
    "cross_entropy", "forward_kl", "reverse_kl", "total_variation", "lk_alpha", "lk_lambda"
]


class TrainedDraft(Strict):
    """A draft to train."""

    family: str
    name: FileName | None = None
    """Name of its folder and in tables; null for its family."""
    tokens: Tokens | None = None
    """Tokens that it is trained on; null for those of the config."""
    learning_rate: Rate | None = None
    """Its learning rate; null for that of the config."""
    seed: Seed | None = None
    """Its seed, with which the name of its folder then ends; null for that of the config."""
    loss: LossName = "forward_kl"
    """What is made small: how far the draft's distribution is from the target's (`training/losses.py`).
    `cross_entropy` learns the texts' tokens."""

    @property
    def title(self) -> str:
        """Its name, or its family."""
        return self.name or self.family

    @property
    def label(self) -> str:
        """Its title, and its seed if it has one of its own."""
        return self.title if self.seed is None else f"{self.title}-seed{self.seed}"


class LayersDraft(TrainedDraft):
    """A draft of decoder layers of its own."""

    inner: Size
    """Numbers between the two maps of a feed-forward layer."""
    layers: Size = 1
    """Decoder layers."""
    heads: Size | None = None
    """Heads of queries; null for as many as the target has."""
    kv_heads: Size | None = None
    """Heads of keys and values; null for as many as the target has."""
    head_dim: Size | None = None
    """Numbers of a head; null for as many as the target's."""


class AutoregressiveDraft(LayersDraft):
    """A head that reads its own states below the root."""

    steps: Depth = 4
    """Steps at each position, the first on the target's state, the others on the head's own."""
    share: Share = 1.0
    """Weight of a step's loss, as a multiple of that of the step before it."""


class EagleDraft(AutoregressiveDraft):
    """EAGLE-1: one layer that predicts the target's next state (with several steps: as HASS trains it)."""

    family: Literal["eagle"]
    layers: Literal[1] = 1


class Eagle3Draft(AutoregressiveDraft):
    """EAGLE-3: layers that read three states of the target, trained by what they predict alone."""

    family: Literal["eagle3"]
    boundaries: Annotated[tuple[Boundary, ...], Field(min_length=1)] | None = None
    """What it reads of the target: inputs of these layers. Null for 2, L // 2 and L - 3."""

    @model_validator(mode="after")
    def _writable(self) -> "Eagle3Draft":
        if self.boundaries and self.boundaries[0] == 1:
            raise ValueError(
                "boundaries begin with 1, but a first id of 1 means the output of layer 1 to readers of "
                "EAGLE-3's layout: put another boundary first"
            )
        return self


class MedusaHeadsDraft(TrainedDraft):
    """Medusa: several heads on the target's final state, which share its matrix."""

    family: Literal["medusa"]
    count: Annotated[int, Field(strict=True, ge=4, le=32)] = 4
    """Number of heads: the depth of its trees."""
    blocks: Size = 1
    """Residual blocks of a head."""
    share: Share = 0.8
    """Weight of a head's loss, as a multiple of that of the head before it."""


class BlockHeadDraft(LayersDraft):
    """A block drafter: causal within a block (JetSpec), or two-way (DFlash)."""

    family: Literal["block"]
    causal: bool
    """Whether a token of a block sees only those before it."""
    block_size: Annotated[int, Field(strict=True, ge=5, le=64)] = 8
    """Tokens of a block, the anchor among them: one more than the depth of its trees."""
    mask_token: Boundary = 0
    """Id of the token that stands at the positions to predict: one that texts hardly contain."""
    anchors: Size = 32
    """Blocks of each row of a batch, at random places."""
    share: Share = 0.8
    """Weight of a position's loss, as a multiple of that of the position before it."""


class DraftModelDraft(LayersDraft):
    """A draft model, with the target's embedding and head if it has the target's width."""

    family: Literal["model"]
    width: Size | None = None
    """Numbers of a hidden state, with an embedding of its own; null for the target's."""
    on_policy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the batches in which the draft writes the texts itself."""


Trainee = Annotated[
    EagleDraft | Eagle3Draft | MedusaHeadsDraft | BlockHeadDraft | DraftModelDraft,
    Field(discriminator="family"),
]
"""A draft of any family."""
