"""Room for a run's texts and trees in every cache, before anything is timed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.build import Experiment
from treespec.shape import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["largest_tree", "reserve_rows", "rows_of"]

NODES_UNSAID = 64
"""Of a tree that does not say how large it grows."""

MOST_GROWN = 1024
"""Nodes of growing trees that room is kept for. What needs more gets it when it does."""

CAPACITY_STEP = 64
"""Capacities are multiples of it."""


def largest_tree(experiment: Experiment) -> int:
    """Nodes of the largest tree of these methods, as far as they say so, and at least `NODES_UNSAID`."""
    trees = [method.tree for method in experiment.methods if method.tree is not None]
    return max([NODES_UNSAID, *map(_nodes, trees)])


def rows_of(experiment: Experiment, tokens: int) -> int:
    """Rows of a cache that holds any text of a run, with a tree behind it.

    Room for two of the largest trees: a draft may run nodes that are not verified, and captured passes are
    padded (`treespec.models.static_pass`).

    Args:
        experiment: methods and budget.
        tokens: of the longest prompt.
    """
    rows = tokens + experiment.config.max_new_tokens + 2 * largest_tree(experiment)
    return -(-rows // CAPACITY_STEP) * CAPACITY_STEP


def reserve_rows(experiment: Experiment, pair: "Pair", lengths: Iterable[int]) -> None:
    """Have every cache of a run begin with the room that its longest text takes.

    Args:
        experiment: methods and budget.
        pair: the models; the target tells its parts that draft.
        lengths: tokens of the prompts.
    """
    rows = rows_of(experiment, max(lengths, default=0))
    for model in pair.models:
        model.reserve(rows)


def _nodes(tree: Any) -> int:
    """Nodes of a shape; of a growth or budget the most, that a draft runs level by level among them."""
    if isinstance(tree, TreeShape):
        return tree.size
    said = {name: getattr(tree, name, None) for name in ("size", "width", "k")}
    known = {name: value for name, value in said.items() if isinstance(value, int)}
    size = known.pop("size", 0)
    return min(max(size, 1 + tree.max_depth * max(known.values(), default=1)), MOST_GROWN)
