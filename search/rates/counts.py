"""Count how often each child was accepted, and how often it could have been, by text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.search.errors import InvalidTrace
from treespec.search.rates.replay import child_table, step_starts
from treespec.search.rates.trace import Trace
from treespec.tree import TreeShape

__all__ = ["UNKNOWN", "Counts", "Records", "count_records", "count_trace"]

FEWEST_TRIALS = 30
"""Fewest trials for a rate to get a row or a column of its own."""
DEEPEST_UNASKED = 64
"""Most levels that are counted if no depth is given."""

UNKNOWN = "unknown"
"""Law or rule of records that do not state it."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Trials and hits of child r of nodes at depth d, by text.

    Args:
        hits: `[texts, levels, ranks]`, how often the child was the accepted one.
        trials: `[texts, levels, ranks]`, how often an accepted node had such a child.
        mass: `[texts, levels, ranks]`, expected hits given the drafted children, if they are known exactly;
            otherwise the hits.
    """

    hits: Int[np.ndarray, "texts levels ranks"]
    trials: Int[np.ndarray, "texts levels ranks"]
    mass: Float[np.ndarray, "texts levels ranks"]

    def pooled(self) -> "Counts":
        """The counts summed over depths, as a single level."""
        return Counts(*(x.sum(axis=1, keepdims=True) for x in (self.hits, self.trials, self.mass)))


@dataclass(frozen=True, eq=False)
class Records:
    """Steps of real decoding with trees.

    Args:
        texts: the steps of each text; a step is its tree and the accepted nodes from the root (0)
            downwards, as in `Verdict.path`. A step that the end of the text cut counts whole.
        law: how children were drawn.
        rule: how they were accepted.
        sampling: sampling settings of target and draft, such as {"temperature": 1.0}; empty if not known.
        about: models, prompts, seeds, hardware; plain data.
    """

    texts: Sequence[Sequence[tuple[TreeShape, Sequence[int]]]]
    law: str = UNKNOWN
    rule: str = UNKNOWN
    sampling: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def count_trace(
    trace: Trace, levels: int | None, ranks: int, starts: TreeShape | None = None
) -> Counts:
    """Count the hits and trials of a trace by depth.

    Args:
        trace: the trace, whose kept positions count.
        levels: number of depths to count; None for all with at least `FEWEST_TRIALS` trials.
        ranks: number of children to count, at most the width.
        starts: the tree whose replayed steps are counted, at the nodes that they accept, and child r only
            where the node has one. By default, decoding starts at every kept position and every node has
            `ranks` children: position s + d is a trial at depth d if a start s reaches it along children of
            these ranks.

    Raises:
        InvalidTrace: if the tree cannot be replayed, see `treespec.search.rates.replay`.
    """
    inside, text_of = trace.inside, trace.text_of
    if starts is None:
        at, table = np.flatnonzero(inside), _endless(ranks)
    else:
        at, table = step_starts(trace, starts), child_table(starts)
    inner, has_child = table.max(axis=1) >= 0, _has_child(table, ranks)
    node, rows = np.zeros(len(at), dtype=np.int64), []
    while len(rows) < (levels or DEEPEST_UNASKED):
        if levels is None and rows and len(at) < FEWEST_TRIALS:
            break
        rows.append(_level(trace, at, has_child[node]))
        node = table[node, np.minimum(trace.ranks[at], table.shape[1] - 1)]
        at, node = at[node >= 0] + 1, node[node >= 0]
        at, node = at[at < len(inside)], node[at < len(inside)]
        goes_on = inside[at] & (text_of[at] == text_of[at - 1]) & inner[node]
        at, node = at[goes_on], node[goes_on]
    return Counts(*(np.stack(level, axis=1) for level in zip(*rows, strict=True)))


def _endless(ranks: int) -> Int[np.ndarray, "1 ranks_1"]:
    """A table as in `child_table` of an infinite tree: one node that is each of its own children."""
    return np.array([[0] * ranks + [-1]])


def _has_child(
    table: Int[np.ndarray, "nodes most_1"], ranks: int
) -> Bool[np.ndarray, "nodes ranks"]:
    """Whether each node has a child of each of the first ranks."""
    has_child = np.zeros((len(table), ranks), dtype=bool)
    known = min(ranks, table.shape[1])
    has_child[:, :known] = table[:, :known] >= 0
    return has_child


def _level(
    trace: Trace, positions: Int[np.ndarray, "P"], has_child: Bool[np.ndarray, "P ranks"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hits, trials and expected hits of one level's children, `[texts, ranks]` each.

    Excerpts of one file count as one text.
    """
    text, ranks = trace.file_of[trace.text_of[positions]], has_child.shape[1]

    def by_text(cells: np.ndarray) -> np.ndarray:
        sums = [np.bincount(text, column, minlength=trace.samples) for column in cells.T]
        return np.stack(sums, axis=1)

    hits = has_child & (trace.ranks[positions, None] == np.arange(ranks))
    mass = trace.accepted[positions, :ranks] * has_child
    return by_text(hits).astype(np.int64), by_text(has_child).astype(np.int64), by_text(mass)


def count_records(texts: Iterable[Any]) -> tuple[Counts, list[set[int]]]:
    """Count the hits and trials of steps of real decoding.

    Child r of an accepted node is a trial if it exists, whatever happened to its elder siblings. Children
    that were not in the tree, or below a rejected node, do not count.

    Returns:
        The counts, and for each depth the numbers of children that accepted nodes had there.

    Raises:
        InvalidTrace: if no step has a drafted child, or a path is not one of its tree; the message names
            the indices of text and step.
    """
    cells_of_texts: list[dict[tuple[int, int], list[int]]] = []
    numbers: list[set[int]] = []
    for i, steps in enumerate(texts):
        cells: dict[tuple[int, int], list[int]] = {}
        try:
            for j, (shape, path) in enumerate(steps):
                _count_step(shape, path, cells, numbers, f"texts[{i}][{j}]")
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidTrace):
                raise
            raise InvalidTrace(
                f"texts[{i}] is not a list of steps (TreeShape, accepted nodes from the root)"
            ) from None
        cells_of_texts.append(cells)
    keys = {key for cells in cells_of_texts for key in cells}
    if not keys:
        raise InvalidTrace("there is no step with a drafted child, so there is nothing to count")
    levels, ranks = (max(key[axis] for key in keys) + 1 for axis in (0, 1))
    counts = np.zeros((2, len(cells_of_texts), levels, ranks), dtype=np.int64)
    for text, cells in enumerate(cells_of_texts):
        for (depth, rank), (hits, trials) in cells.items():
            counts[:, text, depth, rank] = hits, trials
    return Counts(counts[0], counts[1], counts[0].astype(np.float64)), numbers[:levels]


def _count_step(
    shape: TreeShape,
    path: Sequence[int],
    cells: dict[tuple[int, int], list[int]],
    numbers: list[set[int]],
    where: str,
) -> None:
    path = [int(node) for node in path]
    parent = -1
    for node in path:
        if not 0 <= node < shape.size or shape.parents[node] != parent:
            raise InvalidTrace(
                f"{where}: {path} is not a path from the root of a tree of {shape.size} nodes"
            )
        parent = node
    if not path:
        raise InvalidTrace(f"{where}: the path is empty, but the root (0) is always accepted")
    for depth, node in enumerate(path):
        taken = path[depth + 1] if depth + 1 < len(path) else None
        if depth == len(numbers):
            numbers.append(set())
        if shape.children[node]:
            numbers[depth].add(len(shape.children[node]))
        for rank, child in enumerate(shape.children[node]):
            cell = cells.setdefault((depth, rank), [0, 0])
            cell[0] += child == taken
            cell[1] += 1
