"""Trees by name: what a config calls a tree becomes a shape, or a growth, and gets a label.

What waits for a measurement gets a stand-in until it is made.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from treespec import plugins
from treespec.errors import InvalidPlugin, TreespecError, in_words
from treespec.experiments.config.drafts import Combined, by_pair, source_of
from treespec.experiments.config.schema import Method, TreeMethod
from treespec.experiments.config.search_files import read_acceptance, read_calibration
from treespec.experiments.config.shapes import (
    MEASURED,
    BestShape,
    BudgetShape,
    ChainShape,
    CostAwareGrowth,
    DDTreeGrowth,
    DelayedExpansionShape,
    DySpecGrowth,
    Eagle2Growth,
    EqualGrowthGrowth,
    ExpansionShape,
    IndependentChainsShape,
    KaryShape,
    OptimalShape,
    OptTreeGrowth,
    ParentsShape,
    PathsShape,
    SpecExecGrowth,
)
from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget, Settings
from treespec.protocols import Growth
from treespec.search import DDTree, optimal_tree
from treespec.search.growth import POLICIES
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.search import LatencyModel, Ranking

__all__ = [
    "LABELS",
    "TREES",
    "label_of",
    "label_of_draft",
    "search_best",
    "stand_in",
    "tree_of",
    "wants_measured",
]


log = logging.getLogger("treespec")


def label_of(method: TreeMethod) -> str:
    """The name of a method that the config does not name.

    Its tree, what drafts it if that is not `models.draft`, and law and rule if they are given.
    """
    chosen = ", ".join(part for part in (method.law, method.rule) if part)
    drafted = ""
    if not by_pair(method.draft):
        drafted = f"{label_of_draft(method.draft)} "
    shape: Any = method.shape
    label = LABELS.get(type(shape), _label_of_plugged)
    return drafted + label(shape) + (f" ({chosen})" if chosen else "")


def label_of_draft(draft: Settings) -> str:
    """The name of a draft source with its settings."""
    if isinstance(draft, Combined):
        return draft.label
    given = draft.model_dump(exclude={"source"}, exclude_defaults=True)
    return " ".join([source_of(draft).name, *(f"{key}={value}" for key, value in given.items())])


def tree_of(shape: Any) -> TreeShape | Growth | Budget:
    """What a config calls a tree, as a shape, a growth, or the budget of a source.

    Raises:
        TreespecError: if it is none.
    """
    return TREES.get(type(shape), _growth)(shape)


def wants_measured(method: Method) -> TypeGuard[TreeMethod]:
    """Whether a method can be built only once something is measured."""
    shape = getattr(method, "shape", None)
    asked = [getattr(shape, key, None) for key in ("rates", "acceptance", "latency", "calibration")]
    return MEASURED in asked


def stand_in(path: str, method: TreeMethod) -> TreeMethod:
    """What is built instead of a method that waits for a measurement, under a name of its own.

    Args:
        path: of the method in its config.
        method: that waits.

    Raises:
        ConfigError: if it asks for measurements that mean nothing.
    """
    shape, name = method.shape, method.name or label_of(method)
    calibrated = getattr(shape, "calibration", None) == MEASURED
    stands: Any
    if isinstance(shape, OptimalShape | BestShape):
        stands = ExpansionShape(kind="expansion", branching=(2,))
    elif isinstance(shape, CostAwareGrowth):
        limits = shape.model_dump(include={"size", "branching", "depth"})
        stands = SpecExecGrowth(kind="specexec", **limits)
    elif isinstance(shape, DySpecGrowth):
        raise ConfigError(
            f"{path}.shape.calibration: {MEASURED!r} is of children that are chosen, but DySpec "
            "draws its children, and these are accepted by more than their own probability: leave it out, "
            "or name a file"
        )
    else:
        waiting = {"calibration", "latency", "prefix"} & set(type(shape).model_fields)
        stands = shape.model_copy(update=dict.fromkeys(waiting))
    # The config may hold the same growth without a calibration too.
    return method.model_copy(update={"shape": stands, "name": name + ", calibrated" * calibrated})


def search_best(config: BestShape, latency: "LatencyModel") -> "Ranking":
    """`search.best_tree` within the limits of a config, by the trace or the rates that it names.

    Raises:
        SearchError: if there is no best tree; of a source that no tree can be given to, for one.
    """
    from treespec.search import Trace, best_tree
    from treespec.search.rates.replay import require_given_trees

    path = Path(config.acceptance)
    acceptance: Any = read_acceptance(path) if path.suffix != ".npz" else Trace.load(path)
    if isinstance(acceptance, Trace):
        require_given_trees(acceptance)
        acceptance = replace(acceptance, draft_rows=None)  # a tree that grows is no shape
    return best_tree(
        acceptance,
        latency,
        max_size=config.max_size,
        depth=config.depth,
        branching=config.branching,
        prefix=config.prefix,
    )


def _optimal(config: OptimalShape) -> TreeShape:
    rates = config.rates
    given = read_acceptance(Path(rates)) if isinstance(rates, str) else rates
    return optimal_tree(given, config.size, depth=config.depth, branching=config.branching)


def _best(config: BestShape) -> TreeShape:
    from treespec.search import LatencyModel
    from treespec.search.choice.ranking import CHOSEN

    ranking = search_best(config, LatencyModel.load(config.latency))
    said = [ranking.verdict, *(f"Note: {note}" for note in ranking.notes if note != CHOSEN)]
    files = f"{config.acceptance} with the times of {config.latency}"
    log.warning("kind: best, %s: %s\n%s", files, ranking.best.label, "\n".join(said))
    return ranking.best.shape


def _growth(config: Any) -> Growth:
    from treespec.search import LatencyModel

    arguments = {key: value for key, value in config if key != "kind"}
    if arguments.get("calibration") is not None:
        arguments["calibration"] = read_calibration(Path(arguments["calibration"]))
    if arguments.get("latency") is not None:
        arguments["latency"] = LatencyModel.load(arguments["latency"])
    if arguments.get("prior", 0.0) is None:
        del arguments["prior"]
    part = plugins.parts("growth")[config.kind]
    try:
        return part.make(**arguments)
    except Exception as error:
        if isinstance(error, TreespecError) or not part.plugged:
            raise
        problem = in_words(error, "its constructor")
        raise InvalidPlugin(f"growth {part.name!r} of {part.origin}: {problem}") from error


def _label_of_plugged(shape: Any) -> str:
    values = [f"{key}={value}" for key, value in shape if key != "kind"]
    return " ".join([shape.kind, *values])


GROWTHS: dict[str, Any] = {
    "eagle2": Eagle2Growth,
    "opt_tree": OptTreeGrowth,
    "dyspec": DySpecGrowth,
    "specexec": SpecExecGrowth,
    "equal_growth": EqualGrowthGrowth,
    "cost_aware": CostAwareGrowth,
    "ddtree": DDTreeGrowth,
}
"""The settings of our growths."""

for _name, _settings in GROWTHS.items():
    plugins.growth(_name, settings=_settings)({**POLICIES, "ddtree": DDTree}[_name])

TREES: dict[type, Callable[[Any], TreeShape | Growth | Budget]] = {
    ChainShape: lambda s: TreeShape.chain(s.depth),
    KaryShape: lambda s: TreeShape.kary(s.branching, s.depth),
    ExpansionShape: lambda s: TreeShape.expansion(s.branching),
    DelayedExpansionShape: lambda s: TreeShape.expansion(s.whole),
    IndependentChainsShape: lambda s: TreeShape.independent_chains(s.width, s.depth),
    ParentsShape: lambda s: TreeShape.from_parents(s.parents),
    PathsShape: lambda s: TreeShape.from_paths(s.paths),
    OptimalShape: _optimal,
    BestShape: _best,
    BudgetShape: lambda s: Budget(s.size or s.depth + 1, s.depth, s.branching),
    **dict.fromkeys(GROWTHS.values(), _growth),
}

LABELS: dict[type, Callable[[Any], str]] = {
    ChainShape: lambda s: f"chain {s.depth}",
    KaryShape: lambda s: f"{s.branching}-ary {s.depth}",
    ExpansionShape: lambda s: f"expansion {'x'.join(map(str, s.branching))}",
    DelayedExpansionShape: lambda s: (
        f"delayed expansion {s.chain}+{'x'.join(map(str, s.branching))}"
    ),
    IndependentChainsShape: lambda s: f"{s.width} chains x {s.depth}",
    ParentsShape: lambda s: f"tree of {len(s.parents)}",
    PathsShape: lambda s: f"tree of {len(s.paths) + 1}",
    OptimalShape: lambda s: f"optimal {s.size}",
    BestShape: lambda s: "best",
    BudgetShape: lambda s: f"chain {s.depth}" if s.branching == 1 else f"budget {s.size}",
    Eagle2Growth: lambda s: f"EAGLE-2 {s.k}x{s.depth}, {s.size}",
    OptTreeGrowth: lambda s: f"OPT-Tree {s.size}",
    DySpecGrowth: lambda s: f"DySpec {s.size}",
    SpecExecGrowth: lambda s: f"SpecExec {s.size}",
    EqualGrowthGrowth: lambda s: f"equal growth {s.width}x{s.depth}, {s.size}",
    CostAwareGrowth: lambda s: f"cost-aware {s.size}",
    DDTreeGrowth: lambda s: f"DDTree {s.size}",
}
