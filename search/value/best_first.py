"""The best trees of all sizes at once, for rates that do not increase from child to child."""

from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np
from jaxtyping import Float

from treespec.search.value.dynamic_programme import DynamicProgramme
from treespec.search.value.problem import Problem
from treespec.search.value.quotas import share

TIE_TOLERANCE = 1e-12
"""Relative difference below which path products count as equal: they may be multiplied in another order."""
SMALLEST_PRODUCT = float(np.finfo(np.float64).tiny)


class BestFirst:
    """The nodes with the largest path products: the best tree of each size, for monotone rates.

    A node's product is at most its parent's, and at most its elder sibling's if rates do not increase. So
    the n nodes with the largest products form a tree, and no tree of n nodes has a larger sum. Instead of
    using a heap, all nodes with a product above a threshold are generated level by level, in one pass over
    arrays; the threshold is found by a few such passes over fewer nodes.

    Among nodes with equal products (up to rounding), those are chosen that the dynamic programme chooses in
    exact arithmetic: see `optimal_tree`. Sizes beyond the number of nodes with positive products are left
    to the dynamic programme.

    Args:
        problem: a problem with monotone rates.

    Attributes:
        values: expected tokens of the best tree by size, `[size + 1]`; -inf where there is no tree.
    """

    values: Float[np.ndarray, "sizes"]

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes = _candidates(problem)
        self._sorted = np.sort(self._nodes.products)[::-1][: problem.size]
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
        surplus = len(nodes.products) - size
        if surplus:
            tied = nodes.products <= threshold * (1 + TIE_TOLERANCE)
            tied[0] = False  # the root is in every tree
            nodes = nodes.only(~tied | _taken(nodes, tied, int(tied.sum()) - surplus))
        return [-1, *nodes.parents[1:].tolist()]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of a tree, breadth first.

    Args:
        products: product of the rates on the path to each node.
        parents: parent of each node; 0 for the root.
        levels: first node of each level, followed by the number of nodes.
    """

    products: np.ndarray
    parents: np.ndarray
    levels: np.ndarray

    def only(self, kept: np.ndarray) -> "_Nodes":
        """The kept nodes; the parent of a kept node must be kept, too."""
        places = np.zeros(len(kept) + 1, dtype=np.int64)
        np.cumsum(kept, out=places[1:])
        return _Nodes(self.products[kept], places[self.parents[kept]], places[self.levels])


def _taken(nodes: _Nodes, tied: np.ndarray, wanted: int) -> np.ndarray:
    """Which of the tied nodes the tree contains, if it contains `wanted` of them."""
    parents, levels = nodes.parents, nodes.levels.tolist()
    deeper = list(pairwise(levels[1:]))
    below = tied.astype(np.int64)  # tied nodes in the subtree of each node
    for (before, start), (_, end) in reversed(list(pairwise(pairwise(levels)))):
        np.add.at(below[before:start], parents[start:end] - before, below[start:end])
    all_taken = np.zeros(len(tied), dtype=bool)  # whether all tied nodes of a subtree are taken
    taken, quotas = [], {0: wanted} if wanted else {}  # quotas of subtrees that are taken in part
    for start, end in deeper:
        all_taken[start:end] = all_taken[parents[start:end]]
        quotas_above, quotas = quotas, {}
        for node, quota in quotas_above.items():
            first, last = (1 + np.searchsorted(parents[1:], (node, node + 1))).tolist()
            room, optional = below[first:last].tolist(), tied[first:last].tolist()
            for i, number in enumerate(share(quota, room, optional)):
                all_taken[first + i] = number == room[i]
                if 0 < number < room[i]:
                    taken.append(first + i)
                    if number > optional[i]:
                        quotas[first + i] = number - optional[i]
    all_taken[taken] = True
    return all_taken


def _candidates(problem: Problem) -> _Nodes:
    """At least the `size` nodes with the largest products, or all nodes with a positive product.

    Contains every node whose product ties with that of the last one needed.
    """
    size, limit = problem.size, 4 * problem.size + 256
    too_low, too_high = 0.0, 1.0  # thresholds known to give too many and too few nodes
    least, previous_count = 0.5 / size, 0
    while True:
        nodes = _above(problem, least, limit)
        if nodes is None:
            too_low = least
        else:
            count = len(nodes.products)
            if count >= size:
                last = np.partition(nodes.products, count - size)[count - size] * (
                    1 - 4 * TIE_TOLERANCE
                )
                return nodes if last >= least else _above(problem, last, None)
            if least == SMALLEST_PRODUCT:
                return nodes
            too_high = least
            least = max(
                _lower(nodes.products, least, size) if count > previous_count else least**4,
                SMALLEST_PRODUCT,
            )
            previous_count = count
        if too_low > 0 and not too_low < least < too_high:
            least = float(np.sqrt(too_low * too_high))
            if too_high < too_low * (1 + TIE_TOLERANCE):  # more than `limit` nodes tie
                return _above(problem, too_low * (1 - 4 * TIE_TOLERANCE), None)


def _lower(products: np.ndarray, least: float, size: int) -> float:
    """A lower threshold that should give twice `size` nodes, if their number follows a power law."""
    count, fewer = len(products), max(int((products >= 4 * least).sum()), 1)
    slope = min(max(np.log(count / fewer) / np.log(4), 0.5), 2.0)
    return least * (2 * size / count) ** (-1 / slope)


@overload
def _above(problem: Problem, least: float, limit: None) -> _Nodes: ...
@overload
def _above(problem: Problem, least: float, limit: int) -> _Nodes | None: ...
def _above(problem: Problem, least: float, limit: int | None) -> _Nodes | None:
    """All nodes with a product of at least `least`, level by level; None if there are more than `limit`."""
    product = np.ones(1)
    products, parents, levels = [product], [np.zeros(1, dtype=np.int64)], [0, 1]
    for depth in range(problem.depth):
        row = problem.row(depth)
        counts = np.searchsorted(-row, -least / product, side="right")
        added = int(counts.sum())
        if not added:
            break
        if limit is not None and levels[-1] + added > limit:
            return None
        parent = np.repeat(np.arange(len(product)), counts)
        rank = np.arange(added) - (np.cumsum(counts) - counts)[parent]
        product = product[parent] * row[rank]
        products.append(product)
        parents.append(parent + levels[-2])
        levels.append(levels[-1] + added)
    return _Nodes(np.concatenate(products), np.concatenate(parents), np.array(levels))
