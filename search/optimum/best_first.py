"""The best trees of every size at once, where rates do not increase from child to child."""

from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
from jaxtyping import Float

from treespec.search.optimum.dynamic_programme import DynamicProgramme
from treespec.search.optimum.problem import Problem
from treespec.search.optimum.quotas import share

__all__ = ["BestFirst"]

TIE_TOLERANCE = 1e-12
"""Relative difference below which two path products are the same, multiplied in another order."""
SMALLEST_PRODUCT = float(np.finfo(np.float64).tiny)


class BestFirst:
    """The nodes with the largest path products: the best tree of each size, for monotone rates.

    A node's product is at most its parent's, and at most its elder sibling's if rates do not increase. So
    the n nodes of largest product are a tree, and no tree of n nodes has a larger sum. Instead of a heap,
    all nodes with a product above a threshold are made level by level, in one pass over arrays; the
    threshold is found by a few such passes over fewer nodes.

    Of nodes with equal products (up to rounding) those are taken that the dynamic programme takes in exact
    arithmetic: see `optimal_tree`. Sizes with more nodes than have positive products go to the dynamic
    programme.

    Args:
        problem: with monotone rates.

    Attributes:
        values: expected tokens of the best tree by size, `[size + 1]`; -inf where there is no tree.
    """

    values: Float[np.ndarray, "sizes"]

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes = _candidates(problem)
        best = np.sort(self._nodes.products)
        self._sorted = best[::-1][: problem.size]
        self.values = np.full(problem.size + 1, -np.inf)
        sums = np.cumsum(self._sorted)
        self.values[1 : len(sums) + 1] = sums
        self.values[len(sums) + 1 : problem.largest + 1] = sums[-1]

    def parents(self, size: int) -> list[int]:
        """The parent array of the best tree of this size, breadth first."""
        if size > len(self._sorted):
            return DynamicProgramme(self._problem).parents(size)
        threshold = self._sorted[size - 1]
        nodes = self._nodes.only(self._nodes.products >= threshold * (1 - TIE_TOLERANCE))
        spare = len(nodes.products) - size
        if spare:
            tied = nodes.products <= threshold * (1 + TIE_TOLERANCE)
            tied[0] = False  # the root is in every tree
            nodes = nodes.only(~tied | _taken(nodes, tied, int(tied.sum()) - spare))
        return [-1, *nodes.parents[1:].tolist()]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of a tree, breadth first.

    Args:
        products: product of the rates on the path to each node.
        parents: the parent of each node; 0 for the root.
        levels: the first node of each level, and the number of nodes.
    """

    products: np.ndarray
    parents: np.ndarray
    levels: np.ndarray

    def only(self, kept: np.ndarray) -> "_Nodes":
        """The kept nodes; whoever is kept has its parent kept."""
        places = np.zeros(len(kept) + 1, dtype=np.int64)
        np.cumsum(kept, out=places[1:])
        return _Nodes(self.products[kept], places[self.parents[kept]], places[self.levels])


def _taken(nodes: _Nodes, tied: np.ndarray, wanted: int) -> np.ndarray:
    """Which of the tied nodes make the tree, if `wanted` of them are to."""
    parents, levels = nodes.parents, nodes.levels.tolist()
    deeper = list(pairwise(levels[1:]))
    below = tied.astype(np.int64)  # tied nodes in the subtree of each node
    for (before, start), (_, end) in reversed(list(pairwise(pairwise(levels)))):
        np.add.at(below[before:start], parents[start:end] - before, below[start:end])
    whole = np.zeros(len(tied), dtype=bool)  # all tied nodes of the subtree are taken
    taken, partly = [], {0: wanted} if wanted else {}
    for start, end in deeper:
        whole[start:end] = whole[parents[start:end]]
        above, partly = partly, {}
        for node, quota in above.items():
            first, last = (1 + np.searchsorted(parents[1:], (node, node + 1))).tolist()
            room, optional = below[first:last].tolist(), tied[first:last].tolist()
            for i, part in enumerate(share(quota, room, optional)):
                whole[first + i] = part == room[i]
                if 0 < part < room[i]:
                    taken.append(first + i)
                    if part > optional[i]:
                        partly[first + i] = part - optional[i]
    whole[taken] = True
    return whole


def _candidates(problem: Problem) -> _Nodes:
    """At least the `size` nodes with the largest products, or all with a positive one.

    Holds every node whose product ties with that of the last one needed.
    """
    size, limit = problem.size, 4 * problem.size + 256
    over, under = 0.0, 1.0  # thresholds known to give too many and too few nodes
    least, before = 0.5 / size, 0
    while True:
        nodes = _above(problem, least, limit)
        if nodes is None:
            over = least
        else:
            count = len(nodes.products)
            if count >= size:
                last = np.partition(nodes.products, count - size)[count - size] * (
                    1 - 4 * TIE_TOLERANCE
                )
                return nodes if last >= least else _above(problem, last, None)
            if least == SMALLEST_PRODUCT:
                return nodes
            under = least
            least = max(
                _lower(nodes.products, least, size) if count > before else least**4,
                SMALLEST_PRODUCT,
            )
            before = count
        if over > 0 and not over < least < under:
            least = float(np.sqrt(over * under))
            if under < over * (1 + TIE_TOLERANCE):  # more than `limit` nodes tie
                return _above(problem, over * (1 - 4 * TIE_TOLERANCE), None)


def _lower(products: np.ndarray, least: float, size: int) -> float:
    """A threshold that should give twice `size` nodes, if their number goes on as a power of it."""
    count, closer = len(products), max(int((products >= 4 * least).sum()), 1)
    slope = min(max(np.log(count / closer) / np.log(4), 0.5), 2.0)
    return least * (2 * size / count) ** (-1 / slope)


@overload
def _above(problem: Problem, least: float, limit: None) -> _Nodes: ...
@overload
def _above(problem: Problem, least: float, limit: int) -> _Nodes | None: ...
def _above(problem: Problem, least: float, limit: int | None) -> _Nodes | None:
    """All nodes with a product of `least` or more, level by level; None if they are over `limit`."""
    product = np.ones(1)
    products, parents, levels = [product], [np.zeros(1, dtype=np.int64)], [0, 1]
    for depth in range(problem.depth):
        row = problem.row(depth)
        counts = np.searchsorted(-row, -least / product, side="right")
        made = int(counts.sum())
        if not made:
            break
        if limit is not None and levels[-1] + made > limit:
            return None
        parent = np.repeat(np.arange(len(product)), counts)
        rank = np.arange(made) - (np.cumsum(counts) - counts)[parent]
        product = product[parent] * row[rank]
        products.append(product)
        parents.append(parent + levels[-2])
        levels.append(levels[-1] + made)
    return _Nodes(np.concatenate(products), np.concatenate(parents), np.array(levels))
