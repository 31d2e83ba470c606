"""Count how often each child was accepted, and how often it could have been, by text."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from treespec.search.errors import InvalidTrace
from treespec.search.traces.replay import require_drafts
from treespec.search.traces.trace import Trace

FEWEST_TRIALS = 30
"""Fewest trials for a rate to get a row or a column of its own."""
DEEPEST_UNASKED = 64
"""Most levels that are counted if no depth is given."""


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


def count_trace(trace: Trace, levels: int | None, ranks: int) -> Counts:
    """Count the hits and trials of a trace by depth.

    Decoding starts at every kept position, and every node has `ranks` children: position s + d is a trial
    at depth d if a start s reaches it along children of these ranks.
    """
    inside, text_of = trace.inside, trace.text_of
    starts, rows = np.flatnonzero(inside), []
    trace.require_levels(levels or 1)
    while len(rows) < (levels or trace.levels or DEEPEST_UNASKED):
        if levels is None and rows and len(starts) < FEWEST_TRIALS:
            break
        level = len(rows)
        rows.append(_level(trace, starts, level, ranks))
        starts = starts[trace.ranks_below(starts, level) < ranks]
        starts = starts[starts + level + 1 < len(inside)]
        next_ = starts + level + 1
        starts = starts[inside[next_] & (text_of[next_] == text_of[starts])]
    return Counts(*(np.stack(level, axis=1) for level in zip(*rows, strict=True)))


def _level(
    trace: Trace, starts: Int[np.ndarray, "S"], level: int, ranks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hits, trials and expected hits of one level's children, `[texts, ranks]` each.

    Excerpts of one file count as one text.
    """
    text = trace.file_of[trace.text_of[starts]]

    def by_text(cells: np.ndarray) -> np.ndarray:
        sums = [np.bincount(text, column, minlength=trace.samples) for column in cells.T]
        return np.stack(sums, axis=1)

    hits = trace.ranks_below(starts, level)[:, None] == np.arange(ranks)
    mass = trace.accepted_below(starts, level)[:, :ranks]
    return (
        by_text(hits).astype(np.int64),
        by_text(np.ones_like(hits)).astype(np.int64),
        by_text(mass),
    )


def count_drafts(trace: Trace, ranks: int) -> Counts:
    """Count hits and trials of the source's drafts within the recorded limits, by depth.

    Child r of a node that the text takes is a trial if it was drafted, and a hit if the text takes it.
    """
    drafts = require_drafts(trace)
    start = drafts.position_of[drafts.draft_of]
    taken, parent = drafts.on_text(trace.tokens, trace.ends), drafts.above
    tried = drafts.drafted(drafts.budget) & ((parent < 0) | taken[parent]) & (drafts.ranks < ranks)
    kept_ends = np.repeat(trace.offsets[:-1] + trace.text_kept, np.diff(trace.offsets))
    tried &= start + drafts.depths - 1 < kept_ends[start]
    depth = int(drafts.depths.max(initial=0))
    cells = (trace.file_of[trace.text_of[start]] * depth + drafts.depths - 1) * ranks + drafts.ranks
    shape = trace.samples, depth, ranks
    trials, hits = (
        np.bincount(cells[counted], minlength=int(np.prod(shape))).reshape(shape)
        for counted in (tried, tried & taken)
    )
    reached = np.flatnonzero(trials.sum(axis=(0, 2)))
    if not len(reached):
        raise InvalidTrace(
            "the source drafted nothing in these texts, so there is nothing to count"
        )
    last = int(reached[-1]) + 1
    return Counts(hits[:, :last], trials[:, :last], hits[:, :last].astype(np.float64))
