"""Replay budgets on the recorded drafts of a text source: every step of a live run, without the source.

The drafts of such a source are a function of the preceding text, so its tree at a position is known
whatever was drafted and verified before. At temperature 0 the replay is the live run, step by step. Under
`naive` and `onehot` above temperature 0 the trees are equally certain, and steps have the law that they
have in a live run, because a deterministic child is accepted if and only if the text continues with it.
"""

import numpy as np
from jaxtyping import Int

from treespec.plugins import Budget
from treespec.search.arguments import of_class, takes
from treespec.search.errors import InvalidTrace
from treespec.search.rates.counts import Counts
from treespec.search.rates.grown_steps import GrowthReplay
from treespec.search.rates.text_drafts import TextDrafts
from treespec.search.rates.trace import Trace

__all__ = ["count_drafts", "replay_budget"]

BUDGET = of_class("a budget (treespec.plugins.Budget)", "Budget")


@takes(InvalidTrace, trace=of_class("a search.Trace", "Trace"), budget=BUDGET)
def replay_budget(trace: Trace, budget: Budget) -> GrowthReplay:
    """Replay the decoding of a trace's texts with the source's drafts within these limits.

    Args:
        trace: a trace of decoding with a text source.
        budget: limits, none of which exceeds the recorded one.

    Returns:
        The steps, all of them sure and without passes of a draft model.

    Raises:
        InvalidTrace: if the trace is of given texts or of a draft model, the limits exceed the recorded
            ones, or a text has too few positions for the budget's depth.
    """
    drafts = _require_drafts(trace)
    if trace.forced:
        raise InvalidTrace(
            "the trace is of given texts, which do not continue with the accepted tokens, so there are no "
            "steps to replay; record one while decoding"
        )
    drafted = drafts.drafted(budget)
    position = drafts.position_of[drafts.draft_of]
    sizes = 1 + np.bincount(position[drafted], minlength=drafts.positions)
    accepted = np.zeros(drafts.positions, dtype=np.int64)
    taken = drafted & drafts.on_text(trace.tokens, _ends(trace))
    np.maximum.at(accepted, position[taken], drafts.depths[taken])
    starts = trace.offsets[:-1]
    limits = np.minimum(starts + trace.text_kept, trace.offsets[1:] - max(budget.depth - 1, 0))
    short = np.flatnonzero(limits <= starts)
    if len(short):
        text = int(short[0])
        raise InvalidTrace(
            f"text {text} of the trace has {int(trace.offsets[text + 1] - starts[text])} positions, but a "
            f"tree of depth {budget.depth} needs as many: record more beyond the end of each text"
        )
    steps, kept, counts, lengths = [], [], [], accepted.tolist()
    for start, limit in zip(starts.tolist(), limits.tolist(), strict=True):
        before = len(steps)
        while start < limit:
            steps.append(start)
            kept.append(min(lengths[start] + 1, limit - start))
            start += lengths[start] + 1
        counts.append(len(steps) - before)
    return GrowthReplay(
        accepted=accepted[steps],
        kept=np.array(kept),
        sizes=sizes[steps],
        sure=np.ones(len(steps), dtype=bool),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        file_of=trace.file_of,
        max_depth=budget.depth,
        levels=[()] * len(steps),
    )


def count_drafts(trace: Trace, ranks: int) -> Counts:
    """Count hits and trials of the source's drafts within the recorded limits, by depth.

    Child r of a node that the text takes is a trial if it was drafted, and a hit if the text takes it.

    Args:
        trace: a trace of a text source, whose kept positions count.
        ranks: number of children to count, at most the width.

    Raises:
        InvalidTrace: if the trace is of a draft model, or the source drafted nothing.
    """
    drafts = _require_drafts(trace)
    start = drafts.position_of[drafts.draft_of]
    taken, parent = drafts.on_text(trace.tokens, _ends(trace)), drafts.above
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


def _ends(trace: Trace) -> Int[np.ndarray, "T"]:
    """The end of the text that each position belongs to."""
    return np.repeat(trace.offsets[1:], np.diff(trace.offsets))


def _require_drafts(trace: Trace) -> TextDrafts:
    if trace.text_drafts is None:
        raise InvalidTrace(
            "the trace is of a draft model, but budgets apply to sources that bring their own "
            "continuations: replay a tree (--shapes), or record a method of such a source (`treespec trace "
            "--method`)"
        )
    return trace.text_drafts
