"""Reserve room for a run's texts and trees in every cache before anything is timed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.build import Experiment
from treespec.tree.shape import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair

NODES_UNSAID = 64
"""Nodes assumed for a tree that does not state its size."""

MOST_GROWN = 1024
"""Most nodes of a growing tree that room is reserved for; caches grow if a tree needs more."""

CAPACITY_STEP = 64
"""Capacities are multiples of this."""


def largest_tree(experiment: Experiment) -> int:
    """Nodes of the largest tree of these methods, as far as they state it; at least `NODES_UNSAID`."""
    trees = [method.tree for method in experiment.methods if method.tree is not None]
    return max([NODES_UNSAID, *map(nodes_of, trees)])


def rows_of(experiment: Experiment, tokens: int) -> int:
    """Rows that a cache needs to hold any text of a run, followed by a tree.

    This counts the largest tree twice: a draft may run nodes that are not verified, and captured passes are
    padded (`treespec.models.passes.static_pass`).
    """
    rows = tokens + experiment.config.max_new_tokens + 2 * largest_tree(experiment)
    return -(-rows // CAPACITY_STEP) * CAPACITY_STEP


def reserve_rows(experiment: Experiment, pair: "Pair", lengths: Iterable[int]) -> None:
    """Let every cache of a run start with room for the longest text."""
    rows = rows_of(experiment, max(lengths, default=0))
    for model in pair.models:
        model.reserve(rows)


def nodes_of(tree: Any) -> int:
    """Nodes of a shape; for a growth or budget the most nodes that it keeps, or that its draft runs."""
    if isinstance(tree, TreeShape):
        return tree.size
    stated = {name: getattr(tree, name, None) for name in ("size", "width", "k")}
    limits = {name: value for name, value in stated.items() if isinstance(value, int)}
    size = limits.pop("size", 0)
    level = max(limits.values(), default=1)
    return min(max(size, 1 + tree.max_depth * level), MOST_GROWN)
