"""The trees a config can ask for: fixed shapes, searched shapes, and growths by draft probabilities."""

from collections.abc import Callable
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
"""In place of a file: what the `search` of the same config measures."""

Size = Annotated[int, Field(ge=2, le=MOST_NODES, strict=True)]
"""Nodes, the root included."""

Verified = Annotated[Size, Field(description="Maximum verified nodes, root included.")]
Levels = Annotated[Nodes, Field(description="Maximum levels below the root.")]
RatedDepth = Annotated[
    Nodes | None,
    Field(description="Maximum levels below the root; null for as many as there are rates for."),
]
RatedBranching = Annotated[
    Nodes | None,
    Field(description="Maximum children per node; null for as many as there are rates for."),
]
CalibrationFile = Annotated[
    Name | None,
    Field(
        description="File that maps draft probabilities to acceptance, or `measured`; null for none."
    ),
]
Prefix = Annotated[
    Count | None,
    Field(
        description="Tokens before the tree; null for the mean of the run's texts if measured, else that "
        "of `latency`."
    ),
]

MOST_POOL = 2**16
"""Bound on the nodes that a growth drafts in a step, before it keeps the best."""


def _checked(require: Callable[[Any], None]) -> Any:
    """A validator that calls a function, which may raise a ValueError, with the validated shape."""

    def validate(shape: Any) -> Any:
        require(shape)
        return shape

    return model_validator(mode="after")(validate)


def _require_small(nodes: int) -> None:
    """Reject a tree by its size alone, before it is built."""
    if nodes > MOST_NODES:
        raise ValueError(f"a tree of more than {MOST_NODES:,} nodes: make it smaller")


def _require_pool(width: int, depth: int) -> None:
    """Reject `depth` levels of `width` nodes with `width` children each if they draft too many nodes."""
    if width + (depth - 1) * width**2 > MOST_POOL:
        raise ValueError(
            f"more than {MOST_POOL:,} nodes are drafted in a step: {width} children for each of {width} "
            f"nodes on {depth} levels; take fewer"
        )


class ChainShape(Strict):
    """A chain: every node but the last has one child."""

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

    _small = _checked(
        lambda shape: _require_small(expansion_size(repeat(shape.branching, shape.depth)))
    )


class ExpansionShape(Strict):
    """SpecInfer's expansion: level i gives each leaf `branching[i]` children."""

    kind: Literal["expansion"]
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children per node, level by level: with `[3, 2, 1]` the root has 3 children, each of them has 2."""

    _small = _checked(lambda shape: _require_small(expansion_size(shape.branching)))


class DelayedExpansionShape(Strict):
    """Delayed expansion: a chain that opens into a tree only at its end (arXiv:2602.16994)."""

    kind: Literal["delayed_expansion"]
    chain: Count
    """Draft tokens of the chain."""
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children per node below the end of the chain, level by level, as in an `expansion`."""

    @property
    def whole(self) -> tuple[int, ...]:
        """Children per node, level by level, for the chain and the tree below it."""
        return (*[1] * self.chain, *self.branching)

    # A chain that is too long is rejected before the whole tree is written out.
    _short = _checked(lambda shape: _require_small(shape.chain))
    _small = _checked(lambda shape: _require_small(expansion_size(shape.whole)))


class IndependentChainsShape(Strict):
    """`width` chains of `depth` nodes that share only the root."""

    kind: Literal["independent_chains"]
    width: Nodes
    """Number of chains: children of the root."""
    depth: Nodes
    """Draft tokens of each chain."""

    _small = _checked(lambda shape: _require_small(1 + shape.width * shape.depth))


class ParentsShape(Strict):
    """Any tree, as a parent array; node 0 is the root and has parent -1."""

    kind: Literal["parents"]
    parents: Annotated[
        tuple[Annotated[int, Field(strict=True)], ...],
        Field(min_length=2, max_length=MOST_NODES),
    ]
    """The parent of every node; parents come before their children: `[-1, 0, 0, 1]`."""


class PathsShape(Strict):
    """Any tree, as paths of child ranks with the root implied (Medusa's choices)."""

    kind: Literal["paths"]
    paths: Annotated[tuple[tuple[Number, ...], ...], Field(min_length=1, max_length=MOST_NODES - 1)]
    """One path per node except the root: the child ranks on the way to it: `[[0], [1], [0, 0]]`."""


class OptimalShape(Strict):
    """The tree of `size` nodes, root included, that keeps the most tokens under given acceptance rates.

    `rates` are those of the first, second, ... child, or such a list for each level; a file with a trace or
    an estimate (`treespec trace`, `treespec.search.estimate_acceptance`); or `measured`: the `search` of
    this config measures them, which gives one method per sampling setting.
    """

    kind: Literal["optimal"]
    rates: tuple[float, ...] | tuple[tuple[float, ...], ...] | Name
    """Acceptance rates by rank, or by level and rank; a file with such rates; or `measured`."""
    size: Size
    """Nodes, root included."""
    depth: RatedDepth = None
    branching: RatedBranching = None


class BestShape(Strict):
    """What is predicted to be fastest at given acceptance rates and times: a tree, a chain, or no draft.

    `acceptance` and `latency` are files (`treespec trace`, `treespec profile`) or `measured`: the `search`
    of this config measures them, which gives one method per sampling setting. Growths are not among the
    candidates: name them as methods, or rank them by `treespec search` on a trace with `--beam`.
    """

    kind: Literal["best"]
    acceptance: Name = MEASURED
    """A file with a trace or an estimate, or `measured`."""
    latency: Name = MEASURED
    """A file of times (`treespec profile`), or `measured`."""
    max_size: Size | None = None
    """Maximum nodes, root included; null for as many as were timed."""
    depth: RatedDepth = None
    branching: RatedBranching = None
    prefix: Prefix = None


class Eagle2Growth(Strict):
    """EAGLE-2: on each of `depth` levels the best k nodes get k children each; the best nodes are kept."""

    kind: Literal["eagle2"]
    k: Nodes
    """Nodes per level that get children, and children of each."""
    depth: Nodes
    """Drafted levels below the root."""
    size: Size
    """Verified nodes, root included."""
    calibration: CalibrationFile = None

    _small = _checked(lambda growth: _require_pool(growth.k, growth.depth))


class OptTreeGrowth(Strict):
    """OPT-Tree: adds levels as long as each raises the sum of the largest path probabilities by `delta`."""

    kind: Literal["opt_tree"]
    size: Verified
    depth: Levels
    delta: Annotated[float, Field(ge=0)] = 0.0
    """Minimum by which another level must raise the sum of path probabilities."""
    branching: Nodes | None = None
    """Maximum children per node; null for as many as can make a difference."""
    calibration: CalibrationFile = None


class DySpecGrowth(Strict):
    """DySpec: the node with the highest expected gain gets the next drawn child."""

    kind: Literal["dyspec"]
    size: Verified
    depth: Levels
    calibration: Name | None = None
    """File that maps draft probabilities to acceptance; null for none."""


class SpecExecGrowth(Strict):
    """SpecExec: best-first by path probability, with at most `branching` children per node."""

    kind: Literal["specexec"]
    size: Verified
    branching: Nodes
    """Maximum children per node."""
    depth: Levels
    calibration: CalibrationFile = None


class DDTreeGrowth(Strict):
    """DDTree: the most probable continuations under one distribution per position.

    A draft model provides the distributions along the chain of its best tokens: a row stands for its
    position, whatever tokens precede it, so `depth` rows of the draft make a tree of any size. Sources that
    bring their own continuations have no such distributions.
    """

    kind: Literal["ddtree"]
    size: Verified
    depth: Nodes
    """Drafted positions: levels below the root."""
    branching: Nodes | None = None
    """Maximum children per node; null for as many as are probable enough."""


class EqualGrowthGrowth(Strict):
    """Equal growth: `width` new nodes per level; then the best `size` nodes are kept, or as many as pay."""

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

    _small = _checked(lambda growth: _require_pool(growth.width, growth.depth))


class CostAwareGrowth(Strict):
    """Grow and prune the tree as long as the expected tokens are worth the measured time."""

    kind: Literal["cost_aware"]
    size: Verified
    branching: Nodes
    """Maximum children per node."""
    depth: Levels
    width: Nodes | None = None
    """Maximum nodes per level that get children; null for as many as times were measured for."""
    latency: Name = MEASURED
    """A file of times (`treespec profile`), or `measured`."""
    prefix: Prefix = None
    prior: Annotated[float, Field(ge=0, le=1)] | None = None
    """Acceptance expected before anything is drafted, which decides whether to draft at all; null for the
    rate of the first child if times are measured, else 1, with which it always drafts."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Value of a second, in tokens; null for the tokens that a second yields in the same step."""
    calibration: CalibrationFile = None


class BudgetShape(Strict):
    """Limits of a tree, for draft sources that bring their own continuations, such as prompt lookup."""

    kind: Literal["budget"]
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]
    """Maximum draft tokens on a path."""
    branching: Nodes = 1
    """Maximum children per node; with 1 the trees are chains."""
    size: Size | None = None
    """Maximum nodes, root included; null for a chain of `depth`."""

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.size is None and self.branching > 1:
            raise ValueError(
                "a budget with a branching above 1 needs a size: its nodes, root included"
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


Shape = Annotated[
    AnyShape,
    BeforeValidator(
        lambda data: spelled(data) if isinstance(data, str) else data,
        json_schema_input_type=AnyShape | Spelling,
    ),
]
"""A shape, as a mapping or spelled as on the command line."""
