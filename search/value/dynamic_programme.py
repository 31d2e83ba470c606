"""The exact dynamic programme for the best tree, for rates in any order."""

from collections import deque
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidLimit
from treespec.search.value.problem import Problem
from treespec.search.value.tables import Tables, fill, leaf, weighted

ENTRIES_AT_ONCE = 512
"""Entries filled at a time, tables times ranks: enough for array operations, few enough for caches."""

MOST_SUMS = 2**36
"""Limit on the sums of a search, which take minutes."""
MOST_ENTRIES = 2**25
"""Limit on the entries of its tables, which take about 500 MB."""


class DynamicProgramme:
    """The best trees of every size, by the recursion of Sequoia (arXiv:2402.12374, section 3.2).

    T[n, b], the maximum of expected tokens over trees of n nodes whose root has exactly b children, is the
    maximum over the size y of the first part (the root and all but its last child's subtree) of
    T[y, b-1] + P[b] max_j T[n-y, j], with T[1, 0] = 1. With a limit of the depth, subtrees come from the
    table of one edge less. Ours differs from Sequoia's in three ways: rates may depend on the depth;
    without a limit of the depth there is one table instead of one for each depth; and the maximum over y is
    taken for all b and several depths in one array operation. Entries that a further edge of depth does not
    change are copied, not computed.

    Only values are stored. The splits of a requested tree are recomputed from the root downwards by the
    same arithmetic, so that they are the first maximising ones.

    Args:
        problem: the problem, with rates in any order.
        dtype: float64, or float32 to reproduce a search in that precision.
        every_depth: whether smaller limits of the depth will be requested, too; only for rates that do not
            depend on the depth.

    Attributes:
        values: expected tokens of the best tree by size, `[size + 1]`; -inf where there is no tree.
    """

    values: Float[np.ndarray, "sizes"]

    def __init__(
        self, problem: Problem, dtype: Any = np.float64, *, every_depth: bool = False
    ) -> None:
        self._problem = problem
        self._rates = problem.rates.table.astype(dtype)
        self._without_limit = problem.any_depth and not every_depth
        sizes, ranks = problem.size + 1, problem.branching
        tables = 1 if self._without_limit else max(problem.depth, 1)
        if sizes**2 * ranks * tables > MOST_SUMS or sizes * ranks * tables > MOST_ENTRIES:
            raise InvalidLimit(
                f"size = {problem.size} with {ranks} children a node and a depth of {problem.depth}: too "
                "much for the search among rates that increase from child to child; ask for a smaller "
                "size, depth or branching"
            )
        if self._without_limit:
            self._tables = [(fill(self._rates, None, sizes), 0)]
        else:
            self._tables = [(leaf(sizes, 1, ranks, self._rates.dtype), 0)]
            rounds = -(-problem.depth * ranks // max(ENTRIES_AT_ONCE, ranks))
            for edges in np.array_split(np.arange(1, problem.depth + 1), max(rounds, 1)):
                if not self._deepen(edges):
                    break
        self.values = self._best(problem.depth)

    @property
    def values_by_depth(self) -> Float[np.ndarray, "depths sizes"]:
        """`values` for every limit of the depth until they no longer change, `[depths, size + 1]`."""
        rows = [self._best(edges) for edges in range(len(self._tables))]
        unchanged = len(rows) > 1 and np.array_equal(rows[-1], rows[-2])
        return np.stack(rows[:-1] if unchanged else rows)

    @np.errstate(invalid="ignore")
    def parents(self, size: int, depth: int | None = None) -> list[int]:
        """The parent array of the best tree of this size, breadth first."""
        splits = cache(self._splits)
        parents, node = [-1], 0
        queue = deque([(self._problem.depth if depth is None else depth, size)])
        while queue:
            edges, nodes = queue.popleft()
            if nodes > 1:
                parts = splits(edges, nodes)
                parents += [node] * len(parts)
                queue.extend((self._below(edges), part) for part in parts)
            node += 1
        return parents

    def _at(self, edges: int) -> tuple[Tables, int]:
        """The table of subtrees at most `edges` deep; the last table holds for all larger depths."""
        return self._tables[min(edges, len(self._tables) - 1)]

    def _best(self, edges: int) -> np.ndarray:
        """The best values of subtrees at most `edges` deep, by size."""
        tables, place = self._at(edges)
        return tables.best[:, place]

    def _below(self, edges: int) -> int:
        """The limit of the depth of the subtrees below a root."""
        return edges if self._without_limit else edges - 1

    def _row(self, edges: int) -> np.ndarray:
        """The rates of the children of a root whose subtree is at most `edges` deep."""
        return self._rates[self._problem.depth - edges if self._problem.rates.by_depth else 0]

    def _deepen(self, depths: np.ndarray) -> bool:
        """Add tables of subtrees of these depths; returns whether deeper ones could still differ."""
        if not len(depths):
            return False
        known, upto = self._tables[-1][0], 1
        below = self._best(int(depths[0]) - 1)
        if depths[0] > 1 and not self._problem.rates.by_depth:
            upto = int(np.flatnonzero(below != self._best(int(depths[0]) - 2))[0])
        rates = np.stack([self._row(int(edges)) for edges in depths])
        tables = fill(rates, below, self._problem.size + 1, known, upto)
        for place in range(len(depths)):
            self._tables.append((tables, place))
            if not self._problem.rates.by_depth and np.array_equal(
                self._best(len(self._tables) - 1), self._best(len(self._tables) - 2)
            ):
                return False
        return True

    def _splits(self, edges: int, size: int) -> list[int]:
        """The sizes of the subtrees of a root's children, by rank, in the best subtree of this size."""
        tables, place = self._at(edges)
        best = self._best(self._below(edges))
        rates, parts = self._row(edges), []
        for b in range(int(tables.counts[size, place]), 0, -1):
            second = weighted(rates[b - 1], best[size - b : 0 : -1])
            first = b + int((tables.first[b:size, place, b - 1] + second).argmax())
            parts.append(size - first)
            size = first
        return parts[::-1]
