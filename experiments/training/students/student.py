"""A draft while it is trained: the very modules that draft, and what is made small."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from treespec.draft import ModelDrafter
from treespec.experiments.training.packing import Packed
from treespec.experiments.training.teacher import Taught
from treespec.features import Features
from treespec.protocols import Growth
from treespec.tree import TreeShape


@dataclass(frozen=True)
class Learned:
    """What a batch says of a draft.

    Args:
        loss: what is made small.
        by_depth: the mean loss at each depth.
    """

    loss: Float[Tensor, ""]
    by_depth: Float[Tensor, "D"]


class Student(nn.Module, ABC):
    """A draft while it is trained.

    Its parameters that require gradients are those that are trained. It drafts with the same modules, so
    what is measured while it trains is what a decoder would see.
    """

    reads: Features
    """What it reads of the target."""
    kept: Tensor | None
    """Tokens that it is trained to predict; None for all."""

    def batch(self, packed: Packed, generator: torch.Generator) -> Packed:
        """The batch that is taught: that of the texts, unless a family writes its own."""
        del generator
        return packed

    @abstractmethod
    def forward(self, taught: Taught, generator: torch.Generator) -> Learned:
        """The loss on a batch. `generator`: for what a family draws, on the CPU."""

    @abstractmethod
    def drafter(self, tree: Growth | TreeShape) -> ModelDrafter:
        """A drafter with the present weights, which chooses the most probable children."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the draft into a new folder, as configs take it: a head without its target's rows.

        Raises:
            InvalidArgument: if the folder holds something already.
        """

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @property
    def size(self) -> int:
        """Numbers that are trained."""
        return sum(p.numel() for p in self.trained().values())


def open_to_training(module: nn.Module, target: nn.Module) -> None:
    """Let the parameters of a draft's module that are not its target's be trained, in float32."""
    shared: set[Any] = {id(p) for p in target.parameters()}
    for parameter in module.parameters():
        own = id(parameter) not in shared
        parameter.requires_grad_(own)
        if own:
            parameter.data = parameter.data.float()


def mean_of(values: Float[Tensor, " R"]) -> Float[Tensor, ""]:
    """The mean of the losses of the rows that are counted; 0 of none."""
    return values.sum() / max(len(values), 1)


def learned(losses: Sequence[Float[Tensor, ""]], share: float) -> Learned:
    """What losses by depth say: each weighs `share` times as much as the one before it."""
    by_depth = torch.stack(list(losses))
    weights = by_depth.new_tensor([share**i for i in range(len(losses))])
    return Learned((by_depth * weights).sum() / weights.sum(), by_depth.detach())


def ahead(values: Tensor, by: int) -> Tensor:
    """Each row's values from a later place on; the last ones are repeated, and are never counted."""
    by = min(by, values.shape[1])
    return torch.cat([values[:, by:], values[:, -1:].expand(-1, by, *values.shape[2:])], dim=1)
