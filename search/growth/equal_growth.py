"""Equal growth: levels of equal width, for passes of one shape, pruned at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Self

import numpy as np
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import (
    CalibrationFile,
    GrowthSettings,
    Levels,
    Name,
    Nodes,
    Prefix,
    Verified,
)
from treespec.search.growth.step_times import StepSeconds, read_seconds
from treespec.search.growth.values import CalibrationMap, Chosen, best, last_level, read_values
from treespec.search.latency.latency import LatencyModel
from treespec.tree import TreeShape


@dataclass(frozen=True)
class EqualGrowth(Chosen):
    """The equal-growth tree of Yggdrasil (arXiv:2512.23858), pruned before verification.

    Every level has `width` nodes: the best of all children of the level above, by the product of
    probabilities along the path. So all draft passes but the first, over the root alone, have one shape,
    for which a captured graph can be replayed. At the end the best nodes of all levels are kept: `size` of
    them, or with `latency` the number at which the predicted tokens per second are highest.

    A child that is not selected for its level is not verified either. Ours can also rank by calibrated
    probabilities; it leaves the paper's schedule of stages to the runtime.

    Args:
        width: nodes of a level, and candidate children of each node.
        depth: edges from the root, and number of draft passes.
        size: maximum number of nodes that are kept, the root included; by default all.
        latency: measured times, by which the number of verified nodes is chosen.
        prefix: committed tokens at which the times are read; None leaves it to `latency`.
        calibration: ranks by acceptance instead of the draft's probability.

    Raises:
        InvalidGrowth: if a step takes no time.
        NotMeasured: if the times do not cover the sizes.
    """

    width: int
    depth: int
    size: int | None = None
    latency: LatencyModel | None = field(default=None, repr=False)
    prefix: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Read the times, which may not cover the sizes."""
        _ = self._seconds

    @property
    def keeps_best(self) -> bool:
        """Whether nodes worth less than every kept node cannot affect the result; with times they can."""
        return self.latency is None

    @cached_property
    def _largest(self) -> int:
        full = 1 + self.width * self.depth
        return full if self.size is None else min(self.size, full)

    @cached_property
    def _seconds(self) -> StepSeconds | None:
        if self.latency is None:
            return None
        return read_seconds(
            self.latency,
            size=self._largest,
            width=self.width,
            children=self.width,
            prefix=self.prefix,
        )

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The best `width` of the nodes drafted last, with `width` candidate children each."""
        if self._largest == 1 or shape.depth == self.depth:
            return ()
        level = last_level(shape)
        if len(level) > self.width:
            paths = read_values(shape, probs, self.calibration).paths
            level = np.sort(level[best(paths[level], self.width)])
        return [(node, self.width) for node in level.tolist()]

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The best of the nodes that were selected for their levels."""
        paths = read_values(shape, probs, self.calibration).paths
        nodes = self._levels(shape, paths)
        order = nodes[best(paths[nodes], len(nodes))]
        size = self._largest
        if self._seconds is not None:
            widths = [1] + [self.width] * (shape.depth - 1)
            drafted = self._seconds.drafted(widths[: shape.depth])
            size = 1 + self._seconds.cut(paths[order[1:]], drafted).nodes
        return order[:size].tolist()

    def _levels(self, shape: TreeShape, paths: Float[np.ndarray, "N"]) -> Int[np.ndarray, "n"]:
        """The root, and the best nodes of each level, in the order of creation."""
        depths = np.array(shape.depths)
        levels = [np.flatnonzero(depths == depth) for depth in range(shape.depth + 1)]
        return np.concatenate([np.sort(nodes[best(paths[nodes], self.width)]) for nodes in levels])


class EqualGrowthGrowth(GrowthSettings):
    """Equal growth: `width` new nodes per level; then the best `size` nodes are kept, or as many as pay."""

    example = "{kind: equal_growth, width: 4, depth: 6, size: 16}"
    named = "equal growth {width}x{depth}, {size}"
    widest = "width"

    kind: Literal["equal_growth"]
    width: Nodes
    """New nodes on every level."""
    depth: Levels
    size: Verified
    latency: Name | None = None
    """A file of times, or `measured`: of the `size` nodes, verify only those worth their time. Null to
    verify all of them."""
    prefix: Prefix = None
    calibration: CalibrationFile = None

    @model_validator(mode="after")
    def _small(self) -> Self:
        return self._require_pool(self.width, self.depth)


plugins.growth("equal_growth", settings=EqualGrowthGrowth)(EqualGrowth)
