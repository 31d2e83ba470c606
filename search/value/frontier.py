"""The best tree of every size within every limit of the depth."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from treespec import TreeShape
from treespec.search.errors import InfeasibleTree, InvalidLimit
from treespec.search.traces.acceptance import Acceptance
from treespec.search.value.best_first import BestFirst
from treespec.search.value.dynamic_programme import DynamicProgramme
from treespec.search.value.problem import Problem, read_problem

MOST_PLACES = 2**22
"""Limit on the pairs of a size and a depth."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """The maximum of expected tokens for every size and depth, and the trees that reach it.

    Attributes:
        values: `values[depth, size]` is the expected tokens of the best tree of `size` nodes (the root
            included) that is at most `depth` edges deep; -inf where there is none (also in column 0). Rows
            end with the depth beyond which no value changes.
        depth: the largest depth that may be requested.
    """

    values: Float[np.ndarray, "depths sizes"]
    depth: int
    _parents: Callable[[int, int], list[int]] = field(repr=False)

    @property
    def size(self) -> int:
        """The largest size."""
        return self.values.shape[1] - 1

    def value(self, size: int, depth: int | None = None) -> float:
        """Expected tokens of the best tree of this size within this depth, by default within any."""
        size, depth = self._place(size, depth)
        return float(self.values[min(depth, len(self.values) - 1), size])

    def shape(self, size: int, depth: int | None = None) -> TreeShape:
        """The best tree of this size within this depth, by default within any."""
        return TreeShape(tuple(self._parents(*self._place(size, depth))))

    def _place(self, size: int, depth: int | None) -> tuple[int, int]:
        """Check size and depth."""
        depth = self.depth if depth is None else depth
        if not (1 <= size <= self.size and 0 <= depth <= self.depth):
            raise InvalidLimit(
                f"size = {size}, depth = {depth}, but this frontier ends at size {self.size} and depth "
                f"{self.depth}: ask `optimal_frontier` for more"
            )
        row = self.values[min(depth, len(self.values) - 1)]
        if row[size] == -np.inf:
            largest = int(np.flatnonzero(row > -np.inf)[-1])
            raise InfeasibleTree(
                f"size = {size}, but the largest tree of depth {depth} on this frontier has {largest} "
                f"nodes: give size <= {largest}, or a larger depth"
            )
        return size, depth


def optimal_frontier(
    acceptance: Acceptance, size: int, *, depth: int | None = None, branching: int | None = None
) -> Frontier:
    """Find the best trees of all sizes up to `size` within all depths up to `depth` at once.

    Each entry equals the result of `optimal_tree`, computed from one table for each depth. These are the
    candidates of a choice by measured cost (Sequoia, arXiv:2402.12374, section 3.4). Depths end early if a
    further edge changes no value. If rates depend on the depth *and* are not monotone, every depth takes a
    dynamic programme of its own.

    Args:
        acceptance: rates by rank or by depth and rank, as for `optimal_tree`.
        size: the largest number of nodes, the root included. It may exceed the feasible sizes.
        depth: the largest depth; None for no limit except the rows of `acceptance`.
        branching: maximum number of children of a node; None for all that `acceptance` has rates for.

    Raises:
        InvalidAcceptance, InvalidLimit: as for `optimal_tree`.

    Example:
        >>> frontier = optimal_frontier([0.6, 0.3], 4)
        >>> frontier.values.round(3)
        array([[-inf, 1.  , -inf, -inf, -inf],
               [-inf, 1.  , 1.6 , 1.9 , -inf],
               [-inf, 1.  , 1.6 , 1.96, 2.26]])
        >>> frontier.shape(3, depth=1).parents
        (-1, 0, 0)
    """
    problem = read_problem(acceptance, size, depth, branching)
    if (problem.size + 1) * (problem.depth + 1) > MOST_PLACES:
        raise InvalidLimit(
            f"size = {problem.size} and depth = {problem.depth}: more than {MOST_PLACES:,} pairs of a size "
            "and a depth; ask for a smaller size or depth"
        )
    if problem.monotone:
        return _best_first(problem)
    return _by_depth(problem) if problem.rates.by_depth else _one_programme(problem)


def _best_first(problem: Problem) -> Frontier:
    """One best-first search for each depth, until a further edge changes no value."""
    searches: list[BestFirst] = []
    for depth in range(problem.depth + 1):
        deeper = BestFirst(problem.within(depth))
        if searches and np.array_equal(deeper.values, searches[-1].values):
            break
        searches.append(deeper)

    def parents(size: int, depth: int) -> list[int]:
        known = depth < len(searches)
        return (searches[depth] if known else BestFirst(problem.within(depth))).parents(size)

    return Frontier(np.stack([search.values for search in searches]), problem.depth, parents)


def _by_depth(problem: Problem) -> Frontier:
    """A dynamic programme for each depth, since the value of a subtree depends on its root's depth."""
    searches = [DynamicProgramme(problem.within(depth)) for depth in range(problem.depth + 1)]
    values = np.stack([search.values for search in searches])
    return Frontier(values, problem.depth, lambda size, depth: searches[depth].parents(size))


def _one_programme(problem: Problem) -> Frontier:
    """A single dynamic programme, which has the tables of all depths."""
    search = DynamicProgramme(problem, every_depth=True)
    return Frontier(search.values_by_depth, problem.depth, search.parents)
