"""Reserve room for a run's texts and trees in every cache before anything is timed."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treespec.draft.growth import NODES_UNSAID, nodes_of
from treespec.experiments.config.build import Experiment
from treespec.models.memory import rows_for

if TYPE_CHECKING:
    from treespec.models.load import Pair


def largest_tree(experiment: Experiment) -> int:
    """Nodes of the largest tree of these methods, as far as they state it; at least `NODES_UNSAID`."""
    trees = [method.tree for method in experiment.methods if method.tree is not None]
    return max([NODES_UNSAID, *map(nodes_of, trees)])


def rows_of(experiment: Experiment, tokens: int) -> int:
    """Rows that a cache needs to hold any text of a run, followed by a tree."""
    return rows_for(tokens + experiment.config.max_new_tokens, largest_tree(experiment))


def reserve_rows(experiment: Experiment, pair: "Pair", lengths: Iterable[int]) -> None:
    """Let every cache of a run start with room for the longest text."""
    rows = rows_of(experiment, max(lengths, default=0))
    for model in pair.models:
        model.reserve(rows)
