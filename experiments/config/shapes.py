"""Which trees can be configured: fixed shapes, searched ones, and trees that grow by the draft."""

from itertools import repeat
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from treespec.experiments.config.base import MOST_NODES, Count, Name, Nodes, Number
from treespec.reading_models import Strict
from treespec.shape import expansion_size

__all__ = [
    "MEASURED",
    "BestShape",
    "ChainShape",
    "CostAwareGrowth",
    "DySpecGrowth",
    "Eagle2Growth",
    "EqualGrowthGrowth",
    "ExpansionShape",
    "FixedShape",
    "GrowthShape",
    "IndependentChainsShape",
    "KaryShape",
    "OptTreeGrowth",
    "OptimalShape",
    "ParentsShape",
    "PathsShape",
    "Shape",
    "SpecExecGrowth",
]

MEASURED = "measured"
"""Instead of a file: what the `search` of the same config measures."""

Size = Annotated[int, Field(ge=2, le=MOST_NODES, strict=True)]
"""Nodes, the root included."""

MOST_POOL = 2**16
"""Nodes that a growth drafts in a step, before it keeps the best."""


def _require_small(nodes: int) -> None:
    """Refuse a tree by its size alone, before it is made."""
    if nodes > MOST_NODES:
        raise ValueError(f"a tree of more than {MOST_NODES:,} nodes: make it smaller")


def _require_pool(width: int, depth: int) -> None:
    """Refuse levels of `width` nodes that get as many children each, if they are too many."""
    if width + (depth - 1) * width**2 > MOST_POOL:
        raise ValueError(
            f"more than {MOST_POOL:,} nodes are drafted in a step: {width} children for each of {width} "
            f"nodes of {depth} levels; take fewer"
        )


class ChainShape(Strict):
    """One node below the other."""

    kind: Literal["chain"]
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]


class KaryShape(Strict):
    """Every node above the last level has `branching` children."""

    kind: Literal["kary"]
    branching: Nodes
    depth: Nodes

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(expansion_size(repeat(self.branching, self.depth)))
        return self


class ExpansionShape(Strict):
    """SpecInfer's expansion: level i gives each leaf `branching[i]` children."""

    kind: Literal["expansion"]
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(expansion_size(self.branching))
        return self


class IndependentChainsShape(Strict):
    """`width` chains of `depth` nodes that share only the root."""

    kind: Literal["independent_chains"]
    width: Nodes
    depth: Nodes

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(1 + self.width * self.depth)
        return self


class ParentsShape(Strict):
    """Any tree, as a parent array; the root is node 0 with parent -1."""

    kind: Literal["parents"]
    parents: Annotated[
        tuple[Annotated[int, Field(strict=True)], ...],
        Field(min_length=2, max_length=MOST_NODES),
    ]


class PathsShape(Strict):
    """Any tree, as paths of child ranks with the root implied (Medusa's choices)."""

    kind: Literal["paths"]
    paths: Annotated[tuple[tuple[Number, ...], ...], Field(min_length=1, max_length=MOST_NODES - 1)]


class OptimalShape(Strict):
    """The tree of `size` nodes, the root included, that keeps most tokens under the rates of `search`.

    `rates` are those of the first, second, ... child, or such a list for each level; a file with a trace or
    an estimate (`treespec trace`, `treespec.search.estimate_acceptance`); or `measured`, by the `search`
    of this config, which gives one method for each sampling setting.
    """

    kind: Literal["optimal"]
    rates: tuple[float, ...] | tuple[tuple[float, ...], ...] | Name
    size: Size
    depth: Nodes | None = None
    branching: Nodes | None = None


class BestShape(Strict):
    """What is predicted to be fastest with these acceptance rates and times: a tree, a chain, or no draft.

    `acceptance` and `latency` are files (`treespec trace`, `treespec profile`), or `measured`, by the
    `search` of this config, which gives one method for each sampling setting.
    """

    kind: Literal["best"]
    acceptance: Name = MEASURED
    latency: Name = MEASURED
    max_size: Size | None = None
    depth: Nodes | None = None
    branching: Nodes | None = None
    prefix: Count | None = None
    """Tokens before the tree; null for the mean of the run's texts if measured, else what `latency` has."""


class Eagle2Growth(Strict):
    """EAGLE-2: the best k of a level get k children each, `depth` times; the best of all are kept."""

    kind: Literal["eagle2"]
    k: Nodes
    depth: Nodes
    size: Size
    calibration: Name | None = None

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_pool(self.k, self.depth)
        return self


class OptTreeGrowth(Strict):
    """OPT-Tree: levels are added as long as the sum of the largest path probabilities grows by `delta`."""

    kind: Literal["opt_tree"]
    size: Size
    depth: Nodes
    delta: Annotated[float, Field(ge=0)] = 0.0
    branching: Nodes | None = None
    """Most children of a node; null for as many as can make a difference."""
    calibration: Name | None = None


class DySpecGrowth(Strict):
    """DySpec: the place of most expected value gets the next drawn child."""

    kind: Literal["dyspec"]
    size: Size
    depth: Nodes
    calibration: Name | None = None


class SpecExecGrowth(Strict):
    """SpecExec: best first by path probability, at most `branching` children a node."""

    kind: Literal["specexec"]
    size: Size
    branching: Nodes
    depth: Nodes
    calibration: Name | None = None


class EqualGrowthGrowth(Strict):
    """Equal growth: `width` new nodes a level, then the best are kept: `size`, or as many as pay."""

    kind: Literal["equal_growth"]
    width: Nodes
    depth: Nodes
    size: Size
    latency: Name | None = None
    """A file of times, or `measured`: verify only those of the `size` nodes that are worth their time."""
    prefix: Count | None = None
    calibration: Name | None = None

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_pool(self.width, self.depth)
        return self


class CostAwareGrowth(Strict):
    """Grow and cut as long as the expected tokens are worth the measured time."""

    kind: Literal["cost_aware"]
    size: Size
    branching: Nodes
    depth: Nodes
    width: Nodes | None = None
    """Most nodes of a level that get children; null for as many as times were measured for."""
    latency: Name = MEASURED
    prefix: Count | None = None
    prior: Annotated[float, Field(ge=0, le=1)] | None = None
    """Acceptance expected before anything is drafted, which decides whether to draft at all; null for that
    of the first child if times are measured, else 1, with which it always drafts."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Tokens per second that a second is worth; null for what it yields in the same step."""
    calibration: Name | None = None


FixedShape = (
    ChainShape
    | KaryShape
    | ExpansionShape
    | IndependentChainsShape
    | ParentsShape
    | PathsShape
    | OptimalShape
    | BestShape
)

GrowthShape = (
    Eagle2Growth
    | OptTreeGrowth
    | DySpecGrowth
    | SpecExecGrowth
    | EqualGrowthGrowth
    | CostAwareGrowth
)

Shape = Annotated[FixedShape | GrowthShape, Field(discriminator="kind")]
