"""DySpec: draw one child at a time, where the most probability is left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec import plugins
from treespec.search.errors import InvalidGrowth
from treespec.search.growth.keys import MEASURED, GrowthSettings, Levels, Name, Verified
from treespec.search.growth.values import CalibrationMap, read_values
from treespec.tree import Law, TreeShape

EXHAUSTED_SHARE = 1e-6
"""Remaining share of a node's distribution that counts as nothing, to allow for rounding."""


@dataclass(frozen=True)
class DySpec:
    """DySpec's greedy expansion (arXiv:2410.11744, Algorithm 1): the next child where its value is highest.

    The paper keeps a heap of places for a next child, each with the remaining distribution R and the
    probability v that verification reaches it. The best place is popped, y is drawn from R, and two places
    are pushed: the same place without y, with value v (1 - R[y]), and the new child's, with v R[y].

    These values telescope. With Q the initial distribution of a node, a child's value is its parent's
    times Q[y], and a place's value is its node's times the mass of Q that no child has taken. So ours needs
    no heap: it takes the largest of these products, and the node created first among ties.

    Children are drawn without replacement and stay in the order of draws, so that `rrsw` is lossless: the
    place of the next draw may depend on earlier tokens, but the choice of nodes to keep may not. Each new
    place costs a draft pass over one node. Drawing ends where no mass is left (at temperature 0, after one
    chain).

    Args:
        size: number of nodes, the root included.
        depth: maximum number of edges from the root; by default size - 1, which is no limit.
        calibration: ranks by acceptance instead of the draft's probability.
    """

    laws: ClassVar[frozenset[Law]] = frozenset({Law.WITHOUT_REPLACEMENT})

    size: int
    depth: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)

    @property
    def max_depth(self) -> int:
        """Maximum number of edges of a tree."""
        return self.size - 1 if self.depth is None else min(self.depth, self.size - 1)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """One more child, at the place of highest value."""
        if shape.size >= self.size:
            return ()
        values = read_values(shape, probs, self.calibration)
        parents = np.array(shape.parents[1:], dtype=np.int64)
        remaining = 1 - np.bincount(parents, values.acceptance[1:], minlength=shape.size)
        places = values.paths * np.maximum(remaining, 0)
        drawn = np.bincount(parents, values.probs[1:], minlength=shape.size)
        places[(drawn > 1 - EXHAUSTED_SHARE) | (np.array(shape.depths) >= self.max_depth)] = 0
        node = int(places.argmax())
        return [(node, 1)] if places[node] > 0 else ()


class DySpecGrowth(GrowthSettings):
    """DySpec: the node with the highest expected gain gets the next drawn child."""

    example = "{kind: dyspec, size: 16, depth: 6}"
    named = "DySpec {size}"

    kind: Literal["dyspec"]
    size: Verified
    depth: Levels
    calibration: Name | None = None
    """File that maps draft probabilities to acceptance; null for none."""

    def unmeasured(self) -> GrowthSettings:
        """Refuse a calibration that is measured: there is none for drawn children."""
        raise InvalidGrowth(
            f"calibration: {MEASURED!r} calibrates children that are chosen, but DySpec draws its "
            "children; whether these are accepted depends on more than their own probability: leave it "
            "out, or name a file"
        )


plugins.growth("dyspec", settings=DySpecGrowth)(DySpec)
