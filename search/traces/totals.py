"""Tokens and steps of many trees on the texts of a trace: replay that is fast enough for a search."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from treespec.search.errors import InvalidTrace
from treespec.search.traces.replay import last_nodes
from treespec.search.traces.trace import Trace
from treespec.tree.shape import TreeShape

MOST_WALKS = 2**19
"""Limit on texts times trees that are replayed at once."""


class TextTotals:
    """A trace of decoding, prepared to replay many trees at once.

    All trees of a call are merged into their union. The walk from every position is done once in the union,
    and a tree accepts the depth of the last node on that walk that it contains. Then all texts and trees
    advance step by step together. Results equal those of `search.traces.replay`, which tests check.

    Args:
        trace: a trace of decoding, not of given texts.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._starts, self._ends = trace.offsets[:-1], trace.offsets[1:]
        self._limits = self._starts + trace.text_kept

    def of(
        self, shapes: Sequence[TreeShape]
    ) -> tuple[Int[np.ndarray, "trees texts"], Int[np.ndarray, "trees texts"]]:
        """Emitted tokens and steps of each tree on each text."""
        batch = max(1, MOST_WALKS // self.trace.texts)
        batches = [self._of(shapes[i : i + batch]) for i in range(0, len(shapes), batch)]
        emitted, steps = zip(*batches, strict=True)
        return np.concatenate(emitted), np.concatenate(steps)

    def _of(self, shapes: Sequence[TreeShape]) -> tuple[np.ndarray, np.ndarray]:
        union = _Union(shapes)
        last, trees, texts = self._last_nodes(union), len(shapes), self.trace.texts
        limits = self._limits_for(np.array([shape.depth for shape in shapes])).reshape(-1)
        starts = np.tile(self._starts, trees)
        ends, steps = starts.copy(), np.zeros(trees * texts, dtype=np.int64)
        walk, position = np.arange(trees * texts), starts.copy()
        # The rows of accepted lengths of all trees in one flat array, which is fastest to index.
        flat, row = union.accepted.reshape(-1), np.repeat(np.arange(trees), texts) * union.size
        while len(walk):
            position = position + flat[row + last[position]] + 1
            steps[walk] += 1
            ends[walk] = position
            unfinished = position < limits[walk]
            walk, position, row = walk[unfinished], position[unfinished], row[unfinished]
        return (ends - starts).reshape(trees, texts), steps.reshape(trees, texts)

    def _limits_for(self, depths: Int[np.ndarray, "trees"]) -> Int[np.ndarray, "trees texts"]:
        """The positions before which steps may begin: the whole tree is known there, as in `replay`."""
        limits = np.minimum(self._limits, self._ends - np.maximum(depths[:, None] - 1, 0))
        if (limits <= self._starts).any():
            shortest = int((self._ends - self._starts).min())
            raise InvalidTrace(
                f"a text of the trace has {shortest} positions, but a tree of depth "
                f"{int(depths.max())} needs as many: record more beyond the end of each text"
            )
        return limits

    def _last_nodes(self, union: "_Union") -> Int[np.ndarray, "T"]:
        """The last node of the union that a walk from each position reaches."""
        if union.table.shape[1] - 1 > self.trace.width:
            raise InvalidTrace(
                f"a tree has a node with {union.table.shape[1] - 1} children, but the trace holds "
                f"{self.trace.width} at each position: record it again with more (`--width`)"
            )
        return last_nodes(self.trace, union.table, union.depth)


class _Union:
    """The union of several trees.

    Attributes:
        size: number of nodes.
        depth: edges of the deepest tree.
        table: the child of each node by rank, -1 where there is none, with a last column of -1.
        accepted: `[trees, size]`, how many edges of the path to each node a tree contains.
    """

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        children: list[dict[int, int]] = [{}]
        parents, depths, places = [0], [0], []
        for shape in shapes:
            in_union = [0] * shape.size  # the union's index of each node of the shape
            for node in range(1, shape.size):
                parent, rank = in_union[shape.parents[node]], shape.ranks[node]
                child = children[parent].get(rank)
                if child is None:
                    child = children[parent][rank] = len(children)
                    children.append({})
                    parents.append(parent)
                    depths.append(depths[parent] + 1)
                in_union[node] = child
            places.append(in_union)
        self.size, self.depth = len(children), max(depths)
        widest = max((max(by_rank) + 1 for by_rank in children if by_rank), default=0)
        self.table = np.full((self.size, widest + 1), -1, dtype=np.int64)
        for node, by_rank in enumerate(children):
            for rank, child in by_rank.items():
                self.table[node, rank] = child
        has = np.zeros((len(shapes), self.size), dtype=bool)
        for row, in_union in enumerate(places):
            has[row, in_union] = True
        parent_of, levels = np.array(parents), np.array(depths)
        self.accepted = np.where(has, levels, 0)
        for level in range(2, self.depth + 1):
            nodes = np.flatnonzero(levels == level)
            reached = self.accepted[:, parent_of[nodes]]
            self.accepted[:, nodes] = np.where(has[:, nodes], level, reached)
