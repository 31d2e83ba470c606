"""The trees a config can ask for, fixed, searched, limited or grown, and how each is made."""

import logging
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from treespec import plugins
from treespec.errors import InvalidPlugin, TreespecError, in_words
from treespec.experiments.config.base import Number
from treespec.experiments.config.model_draft import OneOf
from treespec.experiments.config.search_files import read_acceptance, read_calibration
from treespec.experiments.config.spellings import SPELLINGS, spelled
from treespec.plugins import Budget
from treespec.protocols import Growth
from treespec.reading_models import Strict
from treespec.search import LatencyModel, Ranking, Trace, best_tree, optimal_tree
from treespec.search.choice.ranking import CHOSEN
from treespec.search.growth.keys import (
    MEASURED,
    MOST_NODES,
    Count,
    GrowthSettings,
    Name,
    Nodes,
    Prefix,
    Size,
)
from treespec.search.traces.replay import require_given_trees
from treespec.tree.shape import TreeShape, expansion_size

log = logging.getLogger("treespec")

RatedDepth = Annotated[
    Nodes | None,
    Field(description="Maximum levels below the root; null for as many as there are rates for."),
]
RatedBranching = Annotated[
    Nodes | None,
    Field(description="Maximum children per node; null for as many as there are rates for."),
]


class FixedShape(Strict):
    """A tree that is the same at every step."""

    named: ClassVar[str] = ""
    """The tree's part of a method's name, with keys in braces."""

    @property
    def label(self) -> str:
        return self.named.format(**dict(self))

    @property
    def nodes(self) -> int:
        """Nodes of the tree, by its settings alone; 0 if these bound them."""
        return 0

    def tree(self) -> TreeShape:
        raise NotImplementedError

    @model_validator(mode="after")
    def _small(self) -> Self:
        if self.nodes > MOST_NODES:
            raise ValueError(f"a tree of more than {MOST_NODES:,} nodes: make it smaller")
        return self


class ChainShape(FixedShape):
    """A chain: every node but the last has one child."""

    named = "chain {depth}"

    kind: Literal["chain"]
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]
    """Draft tokens: edges from the root to the end of the chain."""

    def tree(self) -> TreeShape:
        return TreeShape.chain(self.depth)


class KaryShape(FixedShape):
    """Every node above the last level has `branching` children."""

    named = "{branching}-ary {depth}"

    kind: Literal["kary"]
    branching: Nodes
    """Children of every node above the last level."""
    depth: Nodes
    """Levels below the root."""

    @property
    def nodes(self) -> int:
        return expansion_size(repeat(self.branching, self.depth))

    def tree(self) -> TreeShape:
        return TreeShape.kary(self.branching, self.depth)


class ExpansionShape(FixedShape):
    """SpecInfer's expansion: level i gives each leaf `branching[i]` children."""

    kind: Literal["expansion"]
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children per node, level by level: with `[3, 2, 1]` the root has 3 children, each of them has 2."""

    @property
    def label(self) -> str:
        return f"expansion {'x'.join(map(str, self.branching))}"

    @property
    def nodes(self) -> int:
        return expansion_size(self.branching)

    def tree(self) -> TreeShape:
        return TreeShape.expansion(self.branching)


class DelayedExpansionShape(FixedShape):
    """Delayed expansion: a chain that opens into a tree only at its end (arXiv:2602.16994)."""

    kind: Literal["delayed_expansion"]
    chain: Count
    """Draft tokens of the chain."""
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Children per node below the end of the chain, level by level, as in an `expansion`."""

    @property
    def label(self) -> str:
        return f"delayed expansion {self.chain}+{'x'.join(map(str, self.branching))}"

    @property
    def nodes(self) -> int:
        return expansion_size(chain(repeat(1, self.chain), self.branching))

    def tree(self) -> TreeShape:
        return TreeShape.expansion([*repeat(1, self.chain), *self.branching])


class IndependentChainsShape(FixedShape):
    """`width` chains of `depth` nodes that share only the root."""

    named = "{width} chains x {depth}"

    kind: Literal["independent_chains"]
    width: Nodes
    """Number of chains: children of the root."""
    depth: Nodes
    """Draft tokens of each chain."""

    @property
    def nodes(self) -> int:
        return 1 + self.width * self.depth

    def tree(self) -> TreeShape:
        return TreeShape.independent_chains(self.width, self.depth)


class SpineShape(FixedShape):
    """A chain of first children, with further children of each of its nodes that stay leaves."""

    kind: Literal["spine"]
    depth: Nodes
    """Draft tokens of the chain."""
    siblings: Annotated[int, Field(strict=True, ge=0, le=MOST_NODES)]
    """Leaves beside each node of the chain; with 0 it is a chain."""

    @property
    def label(self) -> str:
        return f"spine {self.depth}+{self.siblings}"

    @property
    def nodes(self) -> int:
        return 1 + self.depth * (1 + self.siblings)

    def tree(self) -> TreeShape:
        return TreeShape.spine(self.depth, self.siblings)


class ParentsShape(FixedShape):
    """Any tree, as a parent array; node 0 is the root and has parent -1."""

    kind: Literal["parents"]
    parents: Annotated[
        tuple[Annotated[int, Field(strict=True)], ...],
        Field(min_length=2, max_length=MOST_NODES),
    ]
    """The parent of every node; parents come before their children: `[-1, 0, 0, 1]`."""

    @property
    def label(self) -> str:
        return f"tree of {len(self.parents)}"

    def tree(self) -> TreeShape:
        return TreeShape.from_parents(self.parents)


class PathsShape(FixedShape):
    """Any tree, as paths of child ranks with the root implied (Medusa's choices)."""

    kind: Literal["paths"]
    paths: Annotated[tuple[tuple[Number, ...], ...], Field(min_length=1, max_length=MOST_NODES - 1)]
    """One path per node except the root: the child ranks on the way to it: `[[0], [1], [0, 0]]`."""

    @property
    def label(self) -> str:
        return f"tree of {len(self.paths) + 1}"

    def tree(self) -> TreeShape:
        return TreeShape.from_paths(self.paths)


class OptimalShape(FixedShape):
    """The tree of `size` nodes, root included, that keeps the most tokens under given acceptance rates.

    `rates` are those of the first, second, ... child, or such a list for each level; a file with a trace or
    an estimate (`treespec trace`, `treespec estimate`), or Sequoia's vector (`.pt`); or `measured`: the
    `search` of this config measures them, which gives one method per sampling setting.
    """

    named = "optimal {size}"

    kind: Literal["optimal"]
    rates: tuple[float, ...] | tuple[tuple[float, ...], ...] | Name
    """Acceptance rates by rank, or by level and rank; a file with such rates; or `measured`."""
    size: Size
    """Nodes, root included."""
    depth: RatedDepth = None
    branching: RatedBranching = None

    def tree(self) -> TreeShape:
        rates = self.rates
        acceptance = read_acceptance(Path(rates)) if isinstance(rates, str) else rates
        return optimal_tree(acceptance, self.size, depth=self.depth, branching=self.branching)


class BestShape(FixedShape):
    """What is predicted to be fastest at given acceptance rates and times: a tree, a chain, or no draft.

    `acceptance` and `latency` are files (`treespec trace`, `treespec profile`) or `measured`: the `search`
    of this config measures them, which gives one method per sampling setting. Growths are not among the
    candidates: name them as methods, or rank them by `treespec search` on a trace with `--beam`.
    """

    named = "best"

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

    def tree(self, batch: int = 1) -> TreeShape:
        """The shape that ranks first for so many texts in a batch; the verdict is logged."""
        ranking = self.search(LatencyModel.load(self.latency), batch)
        lines = [ranking.verdict, *(f"Note: {note}" for note in ranking.notes if note != CHOSEN)]
        files = f"{self.acceptance} with the times of {self.latency}"
        log.warning("kind: best, %s: %s\n%s", files, ranking.best.label, "\n".join(lines))
        return ranking.best.shape

    def search(self, latency: LatencyModel, batch: int = 1) -> Ranking:
        """Run `search.best_tree` within these limits, on the trace or the rates in the file."""
        path = Path(self.acceptance)
        acceptance: Any = read_acceptance(path) if path.suffix != ".npz" else Trace.load(path)
        if isinstance(acceptance, Trace):
            require_given_trees(acceptance)
            acceptance = replace(acceptance, draft_rows=None)  # a growth is not a shape
        return best_tree(
            acceptance,
            latency,
            max_size=self.max_size,
            depth=self.depth,
            branching=self.branching,
            prefix=self.prefix,
            batch=batch,
        )


class BudgetShape(Strict):
    """Limits of a tree, for draft sources that bring their own continuations, such as prompt lookup."""

    kind: Literal["budget"]
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]
    """Maximum draft tokens on a path."""
    branching: Nodes = 1
    """Maximum children per node; with 1 the trees are chains."""
    size: Size | None = None
    """Maximum nodes, root included; null for a chain of `depth`."""

    @property
    def label(self) -> str:
        return f"chain {self.depth}" if self.branching == 1 else f"budget {self.size}"

    def tree(self) -> Budget:
        return Budget(self.size or self.depth + 1, self.depth, self.branching)

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.size is None and self.branching > 1:
            raise ValueError(
                "a budget with a branching above 1 needs a size: its nodes, root included"
            )
        return self


AnyShape = Annotated[
    ChainShape
    | KaryShape
    | ExpansionShape
    | DelayedExpansionShape
    | IndependentChainsShape
    | SpineShape
    | ParentsShape
    | PathsShape
    | OptimalShape
    | BestShape
    | BudgetShape,
    OneOf("growth", "kind"),
]
"""A shape, limits, or the settings of a registered growth."""

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


def tree_of(shape: Any, batch: int = 1) -> TreeShape | Growth | Budget:
    """Build the shape, growth or budget that a config's `shape` describes.

    `batch`: number of texts that are decoded side by side, to whose times the shape is fitted.
    """
    if isinstance(shape, BestShape):
        return shape.tree(batch)
    return shape.tree() if isinstance(shape, FixedShape | BudgetShape) else _growth(shape, batch)


def _growth(config: Any, batch: int) -> Growth:
    arguments = {key: value for key, value in config if key != "kind"}
    if arguments.get("calibration") is not None:
        arguments["calibration"] = read_calibration(Path(arguments["calibration"]))
    if arguments.get("latency") is not None:
        arguments["latency"] = LatencyModel.load(arguments["latency"]).for_batch(batch)
    part = plugins.parts("growth")[config.kind]
    if not part.plugged:  # null stands for the default
        arguments = {key: value for key, value in arguments.items() if value is not None}
    try:
        return part.make(**arguments)
    except (Exception, SystemExit) as error:
        if isinstance(error, TreespecError) or not part.plugged:
            raise
        raise InvalidPlugin(
            f"growth {part.name!r} of {part.origin}: {in_words(error, 'its constructor')}"
        ) from error


def unmeasured(shape: Any) -> Any:
    """The shape to build in place of one that waits for a measurement: of the same laws and rules.

    Raises:
        InvalidGrowth: if a growth needs the measurement; begins with the key.
    """
    if isinstance(shape, OptimalShape | BestShape):
        # about as many nodes as searched trees have on a CPU, since `dtype: fastest` counts them
        return ExpansionShape(kind="expansion", branching=(2, 1, 1, 1))
    if isinstance(shape, GrowthSettings):
        return shape.unmeasured()
    # of a plug-in, which has these keys too
    waiting = {"calibration", "latency", "prefix"} & set(type(shape).model_fields)
    return shape.model_copy(update=dict.fromkeys(waiting))


def label_of_shape(shape: Any) -> str:
    """The tree's part of a method's name; the settings, for a growth of a plug-in."""
    if isinstance(shape, FixedShape | BudgetShape | GrowthSettings):
        return shape.label
    return " ".join([shape.kind, *(f"{key}={value}" for key, value in shape if key != "kind")])
