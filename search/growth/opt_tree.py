"""OPT-Tree: the tree with the most expected tokens, as deep as levels add enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import CalibrationFile, GrowthSettings, Levels, Nodes, Verified
from treespec.search.growth.values import (
    BestOfAll,
    CalibrationMap,
    last_level,
    promising,
    rank_bounds,
    read_values,
)
from treespec.tree import TreeShape


@dataclass(frozen=True)
class OptTree(BestOfAll):
    """OPT-Tree (arXiv:2406.17276, Algorithm 1): the nodes of largest path products, level by level.

    After each level, the estimate E is the sum of the size - 1 largest path products so far, the expected
    gain of the best tree of that size. Drafting continues while a level adds more than `delta` to E. The
    nodes with these products are kept.

    The paper keeps the size - 1 best nodes of each level and considers all their children. Ours drafts only
    children that can still be among the best of all levels, given that the j-th largest probability is at
    most 1/j: the same tree, from fewer nodes.

    Args:
        size: maximum number of nodes that are kept, the root included.
        delta: expected tokens that a level must add; at least 0.
        depth: maximum number of edges from the root, and of draft passes.
        branching: maximum number of children of a node; by default size - 1, beyond which none can matter.
        calibration: ranks by acceptance instead of the draft's probability; must be non-decreasing.
    """

    size: int
    delta: float
    depth: int
    branching: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)

    @property
    def keeps_best(self) -> bool:
        """Whether nodes worth less than every kept node cannot affect the result; with `delta` they can."""
        return self.delta == 0

    @cached_property
    def _bounds(self) -> Float[np.ndarray, "k"]:
        widest = self.size - 1 if self.branching is None else min(self.branching, self.size - 1)
        return rank_bounds(widest, self.calibration)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Nodes of the last level whose children can matter, unless the last level added too little."""
        wanted = self.size - 1
        if not wanted or shape.depth == self.depth:
            return ()
        paths = read_values(shape, probs, self.calibration).paths
        if shape.size > 1:
            before = paths[: last_level(shape)[0]]
            if self._estimate(paths) - self._estimate(before) <= self.delta:
                return ()
        return promising(shape, paths, wanted, self._bounds)

    def _estimate(self, paths: Float[np.ndarray, "N"]) -> float:
        """The expected gain of the best tree of these nodes."""
        return float(np.sort(paths[1:])[::-1][: self.size - 1].sum())


class OptTreeGrowth(GrowthSettings):
    """OPT-Tree: adds levels as long as each raises the sum of the largest path probabilities by `delta`."""

    example = "{kind: opt_tree, size: 16, depth: 6}"
    named = "OPT-Tree {size}"

    kind: Literal["opt_tree"]
    size: Verified
    depth: Levels
    delta: Annotated[float, Field(ge=0)] = 0.0
    """Minimum by which another level must raise the sum of path probabilities."""
    branching: Nodes | None = None
    """Maximum children per node; null for as many as can make a difference."""
    calibration: CalibrationFile = None


plugins.growth("opt_tree", settings=OptTreeGrowth)(OptTree)
