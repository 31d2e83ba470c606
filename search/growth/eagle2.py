"""EAGLE-2: expand the most probable nodes of each level, then rerank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import CalibrationFile, GrowthSettings, Nodes, Size
from treespec.search.growth.values import BestOfAll, CalibrationMap, best, last_level, read_values
from treespec.tree import TreeShape


@dataclass(frozen=True)
class Eagle2(BestOfAll):
    """The dynamic draft tree of EAGLE-2 (arXiv:2406.16858, Section 4): expansion, then reranking.

    The root gets k children. At each further level, the k nodes of highest value get k children each, where
    a node's value is the product of the draft's probabilities along its path (the exponential of the
    paper's sum of logarithms). Of the pool of k + (depth - 1) k^2 nodes, the size - 1 of highest value are
    kept. Ties go to the shallower node, then to the one created first, so no node loses its parent.

    The published code counts the levels after the first: its `depth` is ours less 1, and its
    `total_tokens` is our size less 1. Ours can also rank by calibrated probabilities.

    Args:
        k: children of an expanded node, and nodes expanded in a level.
        depth: edges from the root, and number of draft passes.
        size: maximum number of nodes that are kept, the root included.
        calibration: ranks by acceptance instead of the draft's probability.
    """

    keeps_best: ClassVar[bool] = True
    """Whether nodes worth less than every kept node cannot affect the result."""

    k: int
    depth: int
    size: int
    calibration: CalibrationMap | None = field(default=None, repr=False)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The k best nodes of the last level, with k children each."""
        if self.size == 1 or shape.depth == self.depth:
            return ()
        level = last_level(shape)
        paths = read_values(shape, probs, self.calibration).paths
        chosen = sorted(level[best(paths[level], self.k)].tolist())
        return [(node, self.k) for node in chosen]


class Eagle2Growth(GrowthSettings):
    """EAGLE-2: on each of `depth` levels the best k nodes get k children each; the best nodes are kept."""

    example = "{kind: eagle2, k: 4, depth: 6, size: 16}"
    named = "EAGLE-2 {k}x{depth}, {size}"
    widest = "k"

    kind: Literal["eagle2"]
    k: Nodes
    """Nodes per level that get children, and children of each."""
    depth: Nodes
    """Drafted levels below the root."""
    size: Size
    """Verified nodes, root included."""
    calibration: CalibrationFile = None

    @model_validator(mode="after")
    def _small(self) -> Self:
        return self._require_pool(self.k, self.depth)


plugins.growth("eagle2", settings=Eagle2Growth)(Eagle2)
