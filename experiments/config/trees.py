"""Trees by name: what a config calls a tree becomes a shape, or a growth, and gets a label."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.search_files import read_acceptance, read_calibration, read_chains
from treespec.experiments.config.shapes import (
    BestShape,
    ChainShape,
    CostAwareGrowth,
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
from treespec.protocols import Growth
from treespec.search import optimal_tree
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.search import LatencyModel, Ranking

__all__ = ["LABELS", "TREES", "label_of", "search_best"]


def label_of(method: TreeMethod) -> str:
    """What a method is called that has no name: its tree, and law and rule if the config says them."""
    chosen = ", ".join(part for part in (method.law, method.rule) if part)
    return LABELS[type(method.shape)](method.shape) + (f" ({chosen})" if chosen else "")


def search_best(config: BestShape, latency: "LatencyModel") -> "Ranking":
    """`search.best_tree` within the limits of a config, by the acceptance in the file that it names."""
    from treespec.search import best_tree

    path = Path(config.acceptance)
    return best_tree(
        read_acceptance(path),
        latency,
        chains=read_chains(path),
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

    return search_best(config, LatencyModel.load(config.latency)).best.shape


def _growth(config: Any) -> Growth:
    from treespec.search import LatencyModel
    from treespec.search.growth import POLICIES

    arguments = config.model_dump(exclude={"kind"})
    if arguments.get("calibration") is not None:
        arguments["calibration"] = read_calibration(Path(arguments["calibration"]))
    if arguments.get("latency") is not None:
        arguments["latency"] = LatencyModel.load(arguments["latency"])
    if arguments.get("prior", 0.0) is None:
        del arguments["prior"]
    return POLICIES[config.kind](**arguments)


TREES: dict[type, Callable[[Any], TreeShape | Growth]] = {
    ChainShape: lambda s: TreeShape.chain(s.depth),
    KaryShape: lambda s: TreeShape.kary(s.branching, s.depth),
    ExpansionShape: lambda s: TreeShape.expansion(s.branching),
    IndependentChainsShape: lambda s: TreeShape.independent_chains(s.width, s.depth),
    ParentsShape: lambda s: TreeShape.from_parents(s.parents),
    PathsShape: lambda s: TreeShape.from_paths(s.paths),
    OptimalShape: _optimal,
    BestShape: _best,
    Eagle2Growth: _growth,
    OptTreeGrowth: _growth,
    DySpecGrowth: _growth,
    SpecExecGrowth: _growth,
    EqualGrowthGrowth: _growth,
    CostAwareGrowth: _growth,
}

LABELS: dict[type, Callable[[Any], str]] = {
    ChainShape: lambda s: f"chain {s.depth}",
    KaryShape: lambda s: f"{s.branching}-ary {s.depth}",
    ExpansionShape: lambda s: f"expansion {'x'.join(map(str, s.branching))}",
    IndependentChainsShape: lambda s: f"{s.width} chains x {s.depth}",
    ParentsShape: lambda s: f"tree of {len(s.parents)}",
    PathsShape: lambda s: f"tree of {len(s.paths) + 1}",
    OptimalShape: lambda s: f"optimal {s.size}",
    BestShape: lambda s: "best",
    Eagle2Growth: lambda s: f"EAGLE-2 {s.k}x{s.depth}, {s.size}",
    OptTreeGrowth: lambda s: f"OPT-Tree {s.size}",
    DySpecGrowth: lambda s: f"DySpec {s.size}",
    SpecExecGrowth: lambda s: f"SpecExec {s.size}",
    EqualGrowthGrowth: lambda s: f"equal growth {s.width}x{s.depth}, {s.size}",
    CostAwareGrowth: lambda s: f"cost-aware {s.size}",
}
