"""Margin: branch only where the draft hesitates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import CalibrationFile, GrowthSettings, Levels, Nodes, Verified
from treespec.search.growth.values import (
    CalibrationMap,
    Chosen,
    Values,
    best,
    last_level,
    read_values,
)
from treespec.tree import TreeShape


@dataclass(frozen=True)
class Margin(Chosen):
    """A chain of best tokens that branches where other tokens are nearly as probable.

    A child is kept if its log-probability is at most `gap` below that of its best sibling: the best child
    always is. Where the draft is sure, the tree is a chain, and its nodes go deeper; where it hesitates,
    the tree has up to `branching` children. Of all these nodes the `size` most probable are verified, by
    the product of the draft's probabilities along the path.

    Args:
        size: maximum number of nodes that are kept, the root included.
        depth: maximum number of edges from the root, and of draft passes.
        branching: maximum number of children of a node; all of them are drafted.
        gap: largest difference in log-probability to the best sibling. 0 keeps only equally probable ones.
        calibration: ranks by acceptance instead of the draft's probability; gaps are the draft's.
    """

    keeps_best: ClassVar[bool] = False
    """Whether nodes worth less than every kept node cannot affect the result; a better sibling can."""

    size: int
    depth: int
    branching: int = 2
    gap: float = 1.0
    calibration: CalibrationMap | None = field(default=None, repr=False)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The nodes of the last level that would be kept, with `branching` children each."""
        if self.size == 1 or shape.depth == self.depth:
            return ()
        level, kept = last_level(shape), set(self.keep(shape, probs))
        return [(node, self.branching) for node in level.tolist() if node in kept]

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The most probable of the nodes that are close to their best sibling, as all above them are."""
        values = read_values(shape, probs, self.calibration)
        close = self._close(shape, values)
        return best(np.where(close, values.paths, -1.0), min(self.size, int(close.sum()))).tolist()

    def _close(self, shape: TreeShape, values: Values) -> Bool[np.ndarray, "N"]:
        close = [True]
        for node, parent in enumerate(shape.parents[1:], start=1):
            first = values.probs[shape.children[parent][0]]
            within = values.probs[node] >= first * np.exp(-self.gap)
            close.append(close[parent] and bool(within or node == shape.children[parent][0]))
        return np.array(close)


class MarginGrowth(GrowthSettings):
    """A chain that branches only where other tokens are nearly as probable as the best."""

    example = "{kind: margin, size: 16, depth: 8, gap: 0.5}"
    named = "margin {gap}, {size}"
    widest = "branching"

    kind: Literal["margin"]
    size: Verified
    depth: Levels
    branching: Nodes = 2
    """Maximum children per node; all are drafted."""
    gap: Annotated[float, Field(ge=0)] = 1.0
    """A child is kept if its log-probability is at most this far below that of its best sibling."""
    calibration: CalibrationFile = None

    @model_validator(mode="after")
    def _small(self) -> Self:
        return self._require_pool(min(self.branching, self.size), self.depth)


plugins.growth("margin", settings=MarginGrowth)(Margin)
