"""How often each node of a static tree was accepted, counted from the steps of a run."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.measurements import samplings_of
from treespec.experiments.report.run import Method, Run
from treespec.experiments.report.statistics import Interval, bootstrap
from treespec.tree import TreeShape

__all__ = ["LevelAcceptance", "NodeAcceptance", "count_all", "count_nodes"]


@dataclass(frozen=True)
class LevelAcceptance:
    """Acceptance at one depth, of the steps whose path came to a parent of that depth.

    Args:
        tries: steps whose path came to a node of the depth above that has children.
        share: of the tries, those that accepted a child.
        by_rank: of the tries, those that accepted the first, second, ... child; they add up to `share`.
    """

    tries: int
    share: Interval
    by_rank: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class NodeAcceptance:
    """Counts for one method under one sampling setting.

    Args:
        shape: of the tree.
        steps: steps of each prompt, `[P]`.
        accepted: of these, those that accepted each node, `[P, N]`; the root is always accepted.
    """

    shape: TreeShape
    steps: NDArray[np.int64]
    accepted: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Steps of all prompts."""
        return int(self.steps.sum())

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Steps that accepted each node."""
        return tuple(int(count) for count in self.accepted.sum(0))

    @cached_property
    def shares(self) -> tuple[Interval, ...]:
        """Of all steps, those that accepted each node, with 95 % intervals over prompts."""
        columns: dict[Hashable, NDArray[np.int64]] = {"steps": self.steps}
        totals = bootstrap(columns | dict(enumerate(self.accepted.T)))
        return tuple(totals.ratio([node], ["steps"]) for node in range(self.shape.size))

    @cached_property
    def levels(self) -> tuple[LevelAcceptance, ...]:
        """Acceptance by depth and rank, from depth 1."""
        depths = range(1, self.shape.depth + 1)
        columns: dict[Hashable, NDArray[np.int64]] = {}
        for depth in depths:
            parents, children = self._families(depth)
            columns["tried", depth] = self.accepted[:, parents].sum(1)
            columns["kept", depth] = self.accepted[:, children].sum(1)
        if not columns:
            return ()
        totals = bootstrap(columns)
        return tuple(
            self._level(depth, totals.ratio([("kept", depth)], [("tried", depth)]))
            for depth in depths
        )

    def _families(self, depth: int) -> tuple[list[int], list[int]]:
        """The nodes of the depth above that have children, and their children."""
        shape = self.shape
        parents = [node for node in shape.internal if shape.depths[node] == depth - 1]
        return parents, [child for node in parents for child in shape.children[node]]

    def _level(self, depth: int, share: Interval) -> LevelAcceptance:
        parents, children = self._families(depth)
        tries = sum(self.counts[node] for node in parents)
        hits = [0] * (1 + max(self.shape.ranks[child] for child in children))
        for child in children:
            hits[self.shape.ranks[child]] += self.counts[child]
        by_rank = tuple(count / tries for count in hits) if tries else ()
        return LevelAcceptance(tries, share, by_rank)


def count_all(run: Run) -> dict[tuple[str, str], NodeAcceptance]:
    """The counts of every method with a fixed tree, by sampling setting and method.

    Raises:
        RunFolderError: if a step accepted ranks that the tree does not have.
    """
    found = {
        (sampling, method.name): count_nodes(run, method, sampling)
        for sampling in samplings_of(run)
        for method in run.methods
    }
    return {key: counted for key, counted in found.items() if counted is not None}


def count_nodes(run: Run, method: Method, sampling: str) -> NodeAcceptance | None:
    """Count the accepted nodes of a method with a fixed tree; None if it has none, or no step.

    Raises:
        RunFolderError: if a step accepted ranks that the tree does not have.
    """
    import polars as pl

    if method.kind != "tree" or method.parents is None or not len(run.steps):
        return None
    shape = TreeShape(method.parents)
    rows = run.steps.filter(pl.col("method") == method.name, pl.col("sampling") == sampling)
    if not len(rows):
        return None
    ends: dict[tuple[int, ...], int] = {}
    prompts: dict[int, NDArray[np.int64]] = {}
    for prompt, ranks in rows.select("prompt", "path_ranks").iter_rows():
        path = tuple(ranks)
        if path not in ends:
            ends[path] = _end(run, method, shape, path)
        prompts.setdefault(prompt, np.zeros(shape.size, dtype=np.int64))[ends[path]] += 1
    accepted = np.stack([prompts[prompt] for prompt in sorted(prompts)])
    steps = accepted.sum(1)
    for node in range(shape.size - 1, 0, -1):  # who accepted a node accepted its parent
        accepted[:, shape.parents[node]] += accepted[:, node]
    return NodeAcceptance(shape, steps, accepted)


def _end(run: Run, method: Method, shape: TreeShape, ranks: Sequence[int]) -> int:
    """The last node of the path with these ranks."""
    node = 0
    for rank in ranks:
        if not 0 <= rank < len(shape.children[node]):
            raise RunFolderError(
                f"{run.folder}: a step of {method.name!r} accepted the ranks {list(ranks)}, which its tree "
                "does not have"
            )
        node = shape.children[node][rank]
    return node
