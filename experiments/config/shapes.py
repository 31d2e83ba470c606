"""Which trees can be configured: fixed shapes, searched ones, and trees that grow by the draft."""

from itertools import repeat
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from treespec.experiments.config.base import MOST_NODES, Count, Name, Nodes, Number
from treespec.experiments.config.drafts import OneOf
from treespec.experiments.config.spellings import SPELLINGS, spelled
from treespec.reading_models import Strict
from treespec.shape import expansion_size

__all__ = [
    "MEASURED",
    "AnyShape",
    "BestShape",
    "BudgetShape",
    "ChainShape",
    "CostAwareGrowth",
    "DDTreeGrowth",
    "DelayedExpansionShape",
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
    """Draft tokens: edges from the root to the end of the chain."""


class KaryShape(Strict):
    """Every node above the last level has `branching` children."""

    kind: Literal["kary"]
    branching: Nodes
    """Children of every node above the last level."""
    depth: Nodes
    """Levels below the root."""

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(expansion_size(repeat(self.branching, self.depth)))
        return self


class ExpansionShape(Strict):
    """SpecInfer's expansion: level i gives each leaf `branching[i]` children."""

    kind: Literal["expansion"]
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children of every node, level by level: with `[3, 2, 1]` the root has 3, each of these 2."""

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(expansion_size(self.branching))
        return self


class DelayedExpansionShape(Strict):
    """Delayed expansion: a chain that opens into a tree only at its end (arXiv:2602.16994)."""

    kind: Literal["delayed_expansion"]
    chain: Count
    """Draft tokens of the chain."""
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children of every node from the end of the chain on, level by level, as those of an `expansion`."""

    @property
    def whole(self) -> tuple[int, ...]:
        """Children of every node, level by level."""
        return (*[1] * self.chain, *self.branching)

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_small(self.chain)
        _require_small(expansion_size(self.whole))
        return self


class IndependentChainsShape(Strict):
    """`width` chains of `depth` nodes that share only the root."""

    kind: Literal["independent_chains"]
    width: Nodes
    """Chains, which are children of the root."""
    depth: Nodes
    """Draft tokens of each chain."""

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
    """The parent of every node, which comes before it: `[-1, 0, 0, 1]`."""


class PathsShape(Strict):
    """Any tree, as paths of child ranks with the root implied (Medusa's choices)."""

    kind: Literal["paths"]
    paths: Annotated[tuple[tuple[Number, ...], ...], Field(min_length=1, max_length=MOST_NODES - 1)]
    """Each node but the root as the ranks of the children on the way to it: `[[0], [1], [0, 0]]`."""


class OptimalShape(Strict):
    """The tree of `size` nodes, the root included, that keeps most tokens under the rates of `search`.

    `rates` are those of the first, second, ... child, or such a list for each level; a file with a trace or
    an estimate (`treespec trace`, `treespec.search.estimate_acceptance`); or `measured`, by the `search`
    of this config, which gives one method for each sampling setting.
    """

    kind: Literal["optimal"]
    rates: tuple[float, ...] | tuple[tuple[float, ...], ...] | Name
    """Acceptance rates by rank, the same by level, a file that holds them, or `measured`."""
    size: Size
    """Nodes, the root included."""
    depth: Nodes | None = None
    """Most levels below the root; null for as many as there are rates for."""
    branching: Nodes | None = None
    """Most children of a node; null for as many as there are rates for."""


class BestShape(Strict):
    """What is predicted to be fastest with these acceptance rates and times: a tree, a chain, or no draft.

    `acceptance` and `latency` are files (`treespec trace`, `treespec profile`), or `measured`, by the
    `search` of this config, which gives one method for each sampling setting. Trees that grow are not among
    what it chooses from: name them as methods, or let `treespec search` rank them on a trace with `--beam`.
    """

    kind: Literal["best"]
    acceptance: Name = MEASURED
    """A trace or an estimate, or `measured`."""
    latency: Name = MEASURED
    """A file of times (`treespec profile`), or `measured`."""
    max_size: Size | None = None
    """Most nodes, the root included; null for as many as were timed."""
    depth: Nodes | None = None
    """Most levels below the root; null for as many as there are rates for."""
    branching: Nodes | None = None
    """Most children of a node; null for as many as there are rates for."""
    prefix: Count | None = None
    """Tokens before the tree; null for the mean of the run's texts if measured, else what `latency` has."""


class Eagle2Growth(Strict):
    """EAGLE-2: the best k of a level get k children each, `depth` times; the best of all are kept."""

    kind: Literal["eagle2"]
    k: Nodes
    """Nodes of a level that get children, and children of each."""
    depth: Nodes
    """Levels that are drafted below the root."""
    size: Size
    """Nodes that are verified, the root included."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted, or `measured`; null for none."""

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_pool(self.k, self.depth)
        return self


class OptTreeGrowth(Strict):
    """OPT-Tree: levels are added as long as the sum of the largest path probabilities grows by `delta`."""

    kind: Literal["opt_tree"]
    size: Size
    """Most nodes that are verified, the root included."""
    depth: Nodes
    """Most levels below the root."""
    delta: Annotated[float, Field(ge=0)] = 0.0
    """Growth of the sum of path probabilities that another level must bring."""
    branching: Nodes | None = None
    """Most children of a node; null for as many as can make a difference."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted, or `measured`; null for none."""


class DySpecGrowth(Strict):
    """DySpec: the place of most expected value gets the next drawn child."""

    kind: Literal["dyspec"]
    size: Size
    """Most nodes that are verified, the root included."""
    depth: Nodes
    """Most levels below the root."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted; null for none."""


class SpecExecGrowth(Strict):
    """SpecExec: best first by path probability, at most `branching` children a node."""

    kind: Literal["specexec"]
    size: Size
    """Most nodes that are verified, the root included."""
    branching: Nodes
    """Most children of a node."""
    depth: Nodes
    """Most levels below the root."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted, or `measured`; null for none."""


class DDTreeGrowth(Strict):
    """DDTree: the most probable continuations under one distribution for each position.

    A draft model has them along the chain of its best tokens, whose rows stand for their positions
    whatever the tokens before: `depth` rows of the draft make a tree of any size. Sources that bring
    continuations of their own have none.
    """

    kind: Literal["ddtree"]
    size: Size
    """Most nodes that are verified, the root included."""
    depth: Nodes
    """Positions that are guessed: levels below the root."""
    branching: Nodes | None = None
    """Most children of a node; null for as many as are probable enough."""


class EqualGrowthGrowth(Strict):
    """Equal growth: `width` new nodes a level, then the best are kept: `size`, or as many as pay."""

    kind: Literal["equal_growth"]
    width: Nodes
    """New nodes of every level."""
    depth: Nodes
    """Most levels below the root."""
    size: Size
    """Most nodes that are verified, the root included."""
    latency: Name | None = None
    """A file of times, or `measured`: verify only those of the `size` nodes that are worth their time."""
    prefix: Count | None = None
    """Tokens before the tree; null for the mean of the run's texts if measured, else what `latency` has."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted, or `measured`; null for none."""

    @model_validator(mode="after")
    def _small(self) -> Self:
        _require_pool(self.width, self.depth)
        return self


class CostAwareGrowth(Strict):
    """Grow and cut as long as the expected tokens are worth the measured time."""

    kind: Literal["cost_aware"]
    size: Size
    """Most nodes that are verified, the root included."""
    branching: Nodes
    """Most children of a node."""
    depth: Nodes
    """Most levels below the root."""
    width: Nodes | None = None
    """Most nodes of a level that get children; null for as many as times were measured for."""
    latency: Name = MEASURED
    """A file of times (`treespec profile`), or `measured`."""
    prefix: Count | None = None
    """Tokens before the tree; null for the mean of the run's texts if measured, else what `latency` has."""
    prior: Annotated[float, Field(ge=0, le=1)] | None = None
    """Acceptance expected before anything is drafted, which decides whether to draft at all; null for that
    of the first child if times are measured, else 1, with which it always drafts."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Tokens per second that a second is worth; null for what it yields in the same step."""
    calibration: Name | None = None
    """A file of how often draft probabilities are accepted, or `measured`; null for none."""


class BudgetShape(Strict):
    """Limits, for draft sources that bring continuations of their own, such as prompt lookup."""

    kind: Literal["budget"]
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]
    """Most draft tokens below each other."""
    branching: Nodes = 1
    """Most children of a node; with 1 the trees are chains."""
    size: Size | None = None
    """Most nodes, the root included; null for a chain of `depth`."""

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.size is None and self.branching > 1:
            raise ValueError(
                "with a branching above 1 a budget needs a size: its nodes, root included"
            )
        return self


FixedShape = (
    ChainShape
    | KaryShape
    | ExpansionShape
    | DelayedExpansionShape
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
    | DDTreeGrowth
)

AnyShape = Annotated[FixedShape | BudgetShape | GrowthShape, OneOf("growth", "kind")]

Spelling = Annotated[
    str,
    Field(
        description="A shape in a few characters, such as "
        + ", ".join(f"`{example}`" for example, _ in SPELLINGS.values())
        + "."
    ),
]


def _written_out(data: Any) -> Any:
    return spelled(data) if isinstance(data, str) else data


Shape = Annotated[
    AnyShape, BeforeValidator(_written_out, json_schema_input_type=AnyShape | Spelling)
]
"""A shape, as a mapping or spelled as on the command line."""
