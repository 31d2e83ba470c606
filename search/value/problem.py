"""The problem of finding the best tree: its rates and limits, checked."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from treespec.checks import integer
from treespec.files import brief
from treespec.search.errors import InfeasibleTree, InvalidLimit
from treespec.search.traces.acceptance import Acceptance, Rates, read_rates
from treespec.tree.shape import LARGEST_TREE


@dataclass(frozen=True, eq=False)
class Problem:
    """Find the trees with the most expected tokens among those of at most `size` nodes and `depth` edges.

    Args:
        rates: rates for as many ranks as a node may have children.
        size: maximum number of nodes, the root included.
        depth: maximum number of edges between the root and any node; at most `size - 1`.
    """

    rates: Rates
    size: int
    depth: int

    @property
    def branching(self) -> int:
        """The largest number of children of a node."""
        return self.rates.ranks

    @property
    def any_depth(self) -> bool:
        """Whether the limit of the depth never binds: every tree of this size satisfies it."""
        return not self.rates.by_depth and self.depth == self.size - 1

    @cached_property
    def monotone(self) -> bool:
        """Whether no rate, at any depth within the limit, is larger than that of an elder sibling."""
        used = self.rates.table[: self.depth] if self.rates.by_depth else self.rates.table
        return bool((np.diff(used, axis=1) <= 0).all())

    @cached_property
    def largest(self) -> int:
        """Nodes of the largest tree within depth and branching, but at most `size`."""
        return largest_tree(self.depth, self.branching, self.size)

    def row(self, depth: int) -> Float[np.ndarray, "ranks"]:
        """Rates of the children of a node at this depth, by rank."""
        return self.rates.table[depth if self.rates.by_depth else 0]

    def within(self, depth: int) -> "Problem":
        """The same problem with another limit of the depth."""
        return Problem(self.rates, self.size, min(depth, self.size - 1))


def largest_tree(depth: int, branching: int, enough: int) -> int:
    """Nodes of the full tree of this depth and branching, but at most `enough`."""
    nodes = 1
    for _ in range(depth):
        if nodes >= enough:
            break
        nodes = 1 + branching * nodes
    return min(nodes, enough)


def read_problem(
    acceptance: Acceptance, size: int, depth: int | None, branching: int | None
) -> Problem:
    """Check the arguments of a search."""
    rates = read_rates(acceptance)
    size = integer("size", size, 1, InvalidLimit, LARGEST_TREE)
    if branching is not None:
        branching = integer("branching", branching, 1, InvalidLimit)
        if branching > rates.ranks:
            raise InvalidLimit(
                f"branching = {brief(branching, 40)}, but acceptance has rates for {rates.ranks} child "
                f"ranks: give branching <= {rates.ranks}, or more columns (zeros for children never "
                "accepted)"
            )
        rates = Rates(rates.table[:, :branching], rates.by_depth)
    if depth is not None:
        depth = integer("depth", depth, 0, InvalidLimit)
        require_depth(depth, rates)
    limits = [size - 1, *(limit for limit in (depth, rates.levels) if limit is not None)]
    return Problem(rates, size, min(limits))


def require_depth(depth: int, rates: Rates) -> None:
    """Refuse a depth beyond the rates."""
    if rates.levels is not None and depth > rates.levels:
        raise InvalidLimit(
            f"depth = {brief(depth, 40)}, but acceptance has rates for {rates.levels} depths, one row "
            f"each: give depth <= {rates.levels}, or more rows"
        )


def require_feasible(problem: Problem) -> None:
    """Refuse a size that no tree within the limits can have."""
    if problem.largest < problem.size:
        raise InfeasibleTree(
            f"size = {problem.size}, but the largest tree of depth {problem.depth} with "
            f"{problem.branching} children a node has {problem.largest} nodes: "
            f"give size <= {problem.largest}, or allow more depth or branching"
        )
