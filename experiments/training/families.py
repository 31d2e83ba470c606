"""The drafts that can be trained, as configs name them: for each family its settings and its student."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from treespec.experiments.config.base import FileName
from treespec.reading_models import Strict

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from treespec.experiments.training.fresh_heads import LayerSizes
    from treespec.experiments.training.students.student import Student
    from treespec.models.load import Pair

__all__ = ["Eagle3Draft", "EagleDraft", "TrainedDraft", "Trainee"]

Size = Annotated[int, Field(strict=True, ge=1, le=2**20)]
Boundary = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
LossName = Literal["forward_kl"]


class TrainedDraft(Strict):
    """A draft to train."""

    family: str
    name: FileName | None = None
    """Name of its folder and in tables; null for its family."""
    loss: LossName = "forward_kl"
    """What is made small: the divergence of the draft's distribution from the target's."""

    @property
    def label(self) -> str:
        """Its name, or its family."""
        return self.name or self.family

    @abstractmethod
    def student(self, pair: "Pair", kept: "Int[Tensor, ' v'] | None", seed: int) -> "Student":
        """The draft before training.

        Args:
            pair: whose target it drafts for.
            kept: tokens that it is trained to predict; None for all.
            seed: of its weights.
        """


class _Layers(TrainedDraft):
    inner: Size
    """Numbers between the two maps of a feed-forward layer."""
    layers: Size = 1
    """Decoder layers."""
    heads: Size | None = None
    """Heads of queries; null for as many as the target has."""
    kv_heads: Size | None = None
    """Heads of keys and values; null for as many as the target has."""

    @property
    def sizes(self) -> "LayerSizes":
        """Sizes of its layers."""
        from treespec.experiments.training.fresh_heads import LayerSizes

        return LayerSizes(self.inner, self.layers, self.heads, self.kv_heads)


class _Autoregressive(_Layers):
    steps: Annotated[int, Field(strict=True, ge=1, le=16)] = 4
    """Steps at each position, the first on the target's state, the others on the head's own."""
    share: Share = 1.0
    """Weight of a step's loss, as a multiple of that of the step before it."""

    def _options(self) -> dict[str, Any]:
        from treespec.experiments.training.losses import LOSSES

        return {"steps": self.steps, "share": self.share, "loss": LOSSES[self.loss]}


class EagleDraft(_Autoregressive):
    """EAGLE-1: one layer that predicts the target's next state (with several steps: as HASS trains it)."""

    family: Literal["eagle"]
    layers: Literal[1] = 1

    def student(self, pair: "Pair", kept: "Int[Tensor, ' v'] | None", seed: int) -> "Student":
        from treespec.experiments.training.fresh_heads import fresh_eagle
        from treespec.experiments.training.students.autoregressive import EagleStudent

        head = fresh_eagle(pair.target, self.sizes, seed)
        return EagleStudent(head, pair.target, kept=kept, **self._options())


class Eagle3Draft(_Autoregressive):
    """EAGLE-3: layers that read three states of the target, trained by what they predict alone."""

    family: Literal["eagle3"]
    boundaries: Annotated[tuple[Boundary, ...], Field(min_length=1)] | None = None
    """What it reads of the target: inputs of these layers. Null for 2, L // 2 and L - 3."""

    def student(self, pair: "Pair", kept: "Int[Tensor, ' v'] | None", seed: int) -> "Student":
        from treespec.draft.trained.eagle3_files import default_boundaries
        from treespec.experiments.training.fresh_heads import fresh_eagle3
        from treespec.experiments.training.students.autoregressive import Eagle3Student

        read = self.boundaries or default_boundaries(pair.target.layer_count)
        head = fresh_eagle3(pair.target, self.sizes, seed, boundaries=read, kept=kept)
        return Eagle3Student(head, pair.target, **self._options())


Trainee = Annotated[EagleDraft | Eagle3Draft, Field(discriminator="family")]
"""A draft of any family."""
