"""Build trees from configs: a shape, a growth or a budget, and a label for each.

A tree that waits for a measurement gets a stand-in until the measurement is made.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

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
from treespec.search import DDTree, LatencyModel, Ranking, Trace, best_tree, optimal_tree
from treespec.search.choice.ranking import CHOSEN
from treespec.search.growth import POLICIES
from treespec.search.rates.replay import require_given_trees
from treespec.tree import TreeShape

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

    It says the tree, the draft source unless that is `models.draft`, and law and rule if they are given.
    """
    law_and_rule = ", ".join(name for name in (method.law, method.rule) if name)
    source = "" if by_pair(method.draft) else f"{label_of_draft(method.draft)} "
    shape: Any = method.shape
    label = LABELS.get(type(shape), _label_of_plugged)
    return source + label(shape) + (f" ({law_and_rule})" if law_and_rule else "")


def label_of_draft(draft: Settings) -> str:
    """The name of a draft source, with the settings that differ from the defaults."""
    if isinstance(draft, Combined):
        return draft.label
    given = draft.model_dump(exclude={"source"}, exclude_defaults=True)
    return " ".join([source_of(draft).name, *(f"{key}={value}" for key, value in given.items())])


def tree_of(shape: Any) -> TreeShape | Growth | Budget:
    """Build the shape, growth or budget that a config's `shape` describes.

    Raises:
        TreespecError: if it does not describe a tree.
    """
    return TREES.get(type(shape), _growth)(shape)


def wants_measured(method: Method) -> TypeGuard[TreeMethod]:
    """Whether a method can be built only after the config's `search` has measured something."""
    shape = getattr(method, "shape", None)
    keys = ("rates", "acceptance", "latency", "calibration")
    return any(getattr(shape, key, None) == MEASURED for key in keys)


def stand_in(path: str, method: TreeMethod) -> TreeMethod:
    """The method to build in place of one that waits for a measurement, under a name of its own.

    Args:
        path: of the method in its config.
        method: the waiting method.

    Raises:
        ConfigError: if it asks for a measurement that does not apply to it.
    """
    shape, name = method.shape, method.name or label_of(method)
    replacement: Any
    if isinstance(shape, OptimalShape | BestShape):
        replacement = ExpansionShape(kind="expansion", branching=(2,))
    elif isinstance(shape, CostAwareGrowth):
        replacement = SpecExecGrowth(
            kind="specexec", size=shape.size, branching=shape.branching, depth=shape.depth
        )
    elif isinstance(shape, DySpecGrowth):
        raise ConfigError(
            f"{path}.shape.calibration: {MEASURED!r} calibrates children that are chosen, but DySpec draws "
            "its children, and whether these are accepted depends on more than their own probability: "
            "leave it out, or name a file"
        )
    else:
        waiting = {"calibration", "latency", "prefix"} & set(type(shape).model_fields)
        replacement = shape.model_copy(update=dict.fromkeys(waiting))
    # The config may hold the same growth without a calibration too
    if getattr(shape, "calibration", None) == MEASURED:
        name += ", calibrated"
    return method.model_copy(update={"shape": replacement, "name": name})


def search_best(config: BestShape, latency: LatencyModel) -> Ranking:
    """Run `search.best_tree` within the limits of a config, on the trace or the rates it names.

    Raises:
        SearchError: if there is no best tree, for example because the source does not draft given trees.
    """
    path = Path(config.acceptance)
    acceptance: Any = read_acceptance(path) if path.suffix != ".npz" else Trace.load(path)
    if isinstance(acceptance, Trace):
        require_given_trees(acceptance)
        acceptance = replace(acceptance, draft_rows=None)  # a growth is not a shape
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
    acceptance = read_acceptance(Path(rates)) if isinstance(rates, str) else rates
    return optimal_tree(acceptance, config.size, depth=config.depth, branching=config.branching)


def _best(config: BestShape) -> TreeShape:
    ranking = search_best(config, LatencyModel.load(config.latency))
    lines = [ranking.verdict, *(f"Note: {note}" for note in ranking.notes if note != CHOSEN)]
    files = f"{config.acceptance} with the times of {config.latency}"
    log.warning("kind: best, %s: %s\n%s", files, ranking.best.label, "\n".join(lines))
    return ranking.best.shape


def _growth(config: Any) -> Growth:
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
        raise InvalidPlugin(
            f"growth {part.name!r} of {part.origin}: {in_words(error, 'its constructor')}"
        ) from error


def _label_of_plugged(shape: Any) -> str:
    return " ".join([shape.kind, *(f"{key}={value}" for key, value in shape if key != "kind")])


GROWTHS: dict[str, Any] = {
    "eagle2": Eagle2Growth,
    "opt_tree": OptTreeGrowth,
    "dyspec": DySpecGrowth,
    "specexec": SpecExecGrowth,
    "equal_growth": EqualGrowthGrowth,
    "cost_aware": CostAwareGrowth,
    "ddtree": DDTreeGrowth,
}
"""Settings of the built-in growths, by kind."""

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
