"""SpecExec: the most probable continuations within a budget, found best first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import CalibrationFile, GrowthSettings, Levels, Nodes, Verified
from treespec.search.growth.values import (
    BestOfAll,
    CalibrationMap,
    promising,
    rank_bounds,
    read_values,
)
from treespec.tree import TreeShape


@dataclass(frozen=True)
class SpecExec(BestOfAll):
    """SpecExec's draft tree (arXiv:2406.02532, Algorithm 2): the size - 1 most probable continuations.

    A best-first search by the cumulative probability of paths, over the tree in which each node has its
    `branching` best children. It ends when no unexpanded candidate is better than the worst of the nodes
    that would be kept: these are then exactly the best nodes of the whole tree.

    Like the paper's parallel search, ours expands many nodes in one pass: all nodes of the last level that
    are better than the worst kept one. So there are at most `depth` passes. It drafts only the children
    that can still be kept (see `promising`), and does not expand nodes at the maximum depth.

    Args:
        size: maximum number of nodes that are kept, the root included.
        branching: maximum number of children of a node.
        depth: maximum number of edges from the root, and of draft passes.
        calibration: ranks by acceptance instead of the draft's probability; must be non-decreasing.
    """

    keeps_best: ClassVar[bool] = True
    """Whether nodes worth less than every kept node cannot affect the result."""

    size: int
    branching: int
    depth: int
    calibration: CalibrationMap | None = field(default=None, repr=False)

    @cached_property
    def _bounds(self) -> Float[np.ndarray, "k"]:
        return rank_bounds(min(self.branching, self.size - 1), self.calibration)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Nodes of the last level that are better than the worst one kept."""
        if self.size == 1 or shape.depth == self.depth:
            return ()
        paths = read_values(shape, probs, self.calibration).paths
        return promising(shape, paths, self.size - 1, self._bounds)


class SpecExecGrowth(GrowthSettings):
    """SpecExec: best-first by path probability, with at most `branching` children per node."""

    example = "{kind: specexec, size: 16, branching: 4, depth: 6}"
    named = "SpecExec {size}"

    kind: Literal["specexec"]
    size: Verified
    branching: Nodes
    """Maximum children per node."""
    depth: Levels
    calibration: CalibrationFile = None


plugins.growth("specexec", settings=SpecExecGrowth)(SpecExec)
