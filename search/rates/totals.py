"""Tokens and steps of many trees on the texts of a trace: replay, fast enough to search by."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from treespec.search.errors import InvalidTrace
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape

__all__ = ["Exits", "TextTotals"]

MOST_WALKS = 2**19
"""Texts times trees that are replayed at once."""


@dataclass(frozen=True, eq=False)
class Exits:
    """Where the steps of one tree end.

    Args:
        text: of each step.
        node: the last one that the step accepts, the root if it accepts none.
        rank: the child that was accepted behind it in the text; -1 where the trace has ended.
    """

    text: Int[np.ndarray, "steps"]
    node: Int[np.ndarray, "steps"]
    rank: Int[np.ndarray, "steps"]


class TextTotals:
    """A trace of decoding, made ready to replay many trees at once.

    All trees of a call are put into one: the walk from every position is done once for all of them, and
    what one tree accepts there is the depth of the last node on the way that it has. Then all texts and
    trees go from step to step together. Equal to `treespec.search.rates.replay`; the tests see to it.

    Args:
        trace: of decoding, not of given texts.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._starts, self._ends = trace.offsets[:-1], trace.offsets[1:]
        self._limits = self._starts + trace.text_kept

    @cached_property
    def deepest(self) -> int:
        """Edges of the deepest tree that every text has enough positions for."""
        return int((self._ends - self._starts).min())

    def of(
        self, shapes: Sequence[TreeShape]
    ) -> tuple[Int[np.ndarray, "trees texts"], Int[np.ndarray, "trees texts"]]:
        """Emitted tokens and steps of each tree on each text.

        Raises:
            InvalidTrace: if a tree is too deep or too wide for the trace.
        """
        each = max(1, MOST_WALKS // self.trace.texts)
        parts = [self._of(shapes[i : i + each]) for i in range(0, len(shapes), each)]
        emitted, steps = zip(*parts, strict=True)
        return np.concatenate(emitted), np.concatenate(steps)

    def exits(self, shape: TreeShape) -> Exits:
        """The steps of one tree by the node that each of them ends at; nodes are those of the shape."""
        union = _Union([shape])
        last = self._last_nodes(union)
        lengths = union.accepted[0]
        at, text = self._starts.copy(), np.arange(self.trace.texts)
        limits = self._limits_for(np.array([shape.depth]))[0]
        places, texts = [], []
        while len(at):
            places.append(at)
            texts.append(text)
            at = at + lengths[last[at]] + 1
            going = at < limits[text]
            at, text = at[going], text[going]
        starts, owner = np.concatenate(places), np.concatenate(texts)
        node = union.nodes_of[0][last[starts]]
        behind = starts + lengths[last[starts]]
        known = behind < self._ends[owner]
        rank = np.where(known, self.trace.ranks[np.where(known, behind, 0)], -1)
        return Exits(owner, node, rank)

    def _of(self, shapes: Sequence[TreeShape]) -> tuple[np.ndarray, np.ndarray]:
        union = _Union(shapes)
        last, trees, texts = self._last_nodes(union), len(shapes), self.trace.texts
        limits = self._limits_for(np.array([shape.depth for shape in shapes])).reshape(-1)
        starts = np.tile(self._starts, trees)
        end, steps = starts.copy(), np.zeros(trees * texts, dtype=np.int64)
        walk, at = np.arange(trees * texts), starts.copy()
        # One row of lengths for each tree, laid end to end: a look-up in a flat array is the quickest.
        flat, row = union.accepted.reshape(-1), np.repeat(np.arange(trees), texts) * union.size
        while len(walk):
            at = at + flat[row + last[at]] + 1
            steps[walk] += 1
            end[walk] = at
            going = at < limits[walk]
            walk, at, row = walk[going], at[going], row[going]
        return (end - starts).reshape(trees, texts), steps.reshape(trees, texts)

    def _limits_for(self, depths: Int[np.ndarray, "trees"]) -> Int[np.ndarray, "trees texts"]:
        """Where steps may begin: where the whole tree is known, as in `replay`."""
        limits = np.minimum(self._limits, self._ends - np.maximum(depths[:, None] - 1, 0))
        if (limits <= self._starts).any():
            raise InvalidTrace(
                f"a text of the trace has {self.deepest} positions, but a tree of depth "
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
        ranks = np.minimum(self.trace.ranks, union.table.shape[1] - 1)
        last = np.zeros(len(ranks), dtype=np.int64)
        at, node = np.arange(len(ranks)), last.copy()
        for level in range(union.depth):
            inside = at + level < len(ranks)
            at, node = at[inside], node[inside]
            node = union.table[node, ranks[at + level]]
            alive = node >= 0
            at, node = at[alive], node[alive]
            last[at] = node
        return last


class _Union:
    """Several trees laid over each other.

    Attributes:
        size: nodes.
        depth: edges of the deepest.
        table: the child of each node by rank, -1 where there is none, with a column of -1 behind.
        accepted: `[trees, size]`, how much of the way to each node a tree has.
        nodes_of: for each tree, its own node there; -1 where it has none.
    """

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        children: list[dict[int, int]] = [{}]
        parents, depths, places = [0], [0], []
        for shape in shapes:
            mine = [0] * shape.size
            for node in range(1, shape.size):
                above, rank = mine[shape.parents[node]], shape.ranks[node]
                there = children[above].get(rank)
                if there is None:
                    there = children[above][rank] = len(children)
                    children.append({})
                    parents.append(above)
                    depths.append(depths[above] + 1)
                mine[node] = there
            places.append(mine)
        self.size, self.depth = len(children), max(depths)
        widest = max((max(below) + 1 for below in children if below), default=0)
        self.table = np.full((self.size, widest + 1), -1, dtype=np.int64)
        for node, below in enumerate(children):
            for rank, child in below.items():
                self.table[node, rank] = child
        nodes_of = np.full((len(shapes), self.size), -1, dtype=np.int64)
        for row, mine in enumerate(places):
            nodes_of[row, mine] = np.arange(len(mine))
        above, levels = np.array(parents), np.array(depths)
        self.nodes_of, self.accepted = nodes_of, np.where(nodes_of >= 0, levels, 0)
        for level in range(2, self.depth + 1):
            nodes = np.flatnonzero(levels == level)
            reached = self.accepted[:, above[nodes]]
            self.accepted[:, nodes] = np.where(nodes_of[:, nodes] < 0, reached, level)
