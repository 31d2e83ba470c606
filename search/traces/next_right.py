"""Whether the drafter's next token is right, at the nodes that the steps of texts accept.

Right: the target's best token after a node is the first of the drafter's row there. A node is on the spine
if every accepted token down to it was the first of its parent's row (the root is), else after a sibling:
once a sibling is accepted, all later nodes of the step come after it. Each kept token of a text follows
exactly one accepted node. `treespec.experiments.run.right_marks` records the same in live runs.

In a replay these are those of a live run at temperature 0, step by step; above, they have its law. A node
without children has no row, as in the live run of a draft model, which never runs its leaves. Rows of an
autoregressive model, and drafts of a text source, depend on the text alone: a *fresh* draft that is rooted
at a node has the row of the model there, and what the source drafts at that position. A trained head has
other rows in a fresh draft than in one that is rooted further up, and a trace of one holds both.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from treespec.plugins import Budget
from treespec.search.traces.replay import Replay
from treespec.search.traces.text_drafts import TextDrafts
from treespec.search.traces.trace import Trace

NO_ROW = -1


@dataclass(frozen=True, eq=False)
class AcceptedNodes:
    """The accepted nodes of the steps of one method, one entry each.

    Args:
        text: `[nodes]`, index of the text.
        depth: `[nodes]`, edges from the root of the step's tree.
        spine: `[nodes]`, whether the node is on the spine.
        right: `[nodes]`, 1 if the target's best token is the first of the drafter's row, 0 if not, -1 if
            the drafter has no row at the node.
        fresh: `[nodes]`, the same for a draft that is rooted at the node; -1 if it has no row or was not
            drafted.
    """

    text: Int[np.ndarray, "nodes"]
    depth: Int[np.ndarray, "nodes"]
    spine: Bool[np.ndarray, "nodes"]
    right: Int[np.ndarray, "nodes"]
    fresh: Int[np.ndarray, "nodes"]


def accepted_nodes(trace: Trace, replay: Replay) -> AcceptedNodes | None:
    """The accepted nodes of a replay; None above temperature 0 if the trace lacks the best tokens."""
    if not trace.greedy and (trace.target_best is None or trace.path_ranks is not None):
        return None
    depth = np.concatenate([np.arange(kept) for kept in replay.kept.tolist()])
    step = np.repeat(np.arange(len(replay.kept)), replay.kept)
    start = replay.starts[step]
    position = start + depth
    tokens = trace.tokens[position]
    target = tokens if trace.target_best is None else trace.target_best[position]
    if trace.text_drafts is not None and replay.budget is not None:
        table = _first_of_source(trace, trace.text_drafts, replay.budget)
        first, fresh = table[start, depth], table[position, 0]
    else:
        assert replay.ends_inside is not None
        fresh = first = _first_of_model(trace)[position]
        has_row = (depth < replay.accepted[step]) | replay.ends_inside[step]
        if trace.path_ranks is not None:
            if trace.draft_rows is not None and trace.draft_rows.by_depth:
                has_row = depth < trace.path_ranks.shape[1]  # rows are known without running nodes
            level = np.minimum(depth, trace.path_ranks.shape[1] - 1)
            first = np.where(trace.path_ranks[start, level] == 0, tokens, tokens + 1)
        first = np.where(has_row, first, NO_ROW)
    # The first node of each step that a sibling follows; the token after the last node is the bonus.
    leaves = np.full(len(replay.kept), replay.max_depth)
    np.minimum.at(leaves, step[tokens != first], depth[tokens != first])
    return AcceptedNodes(
        text=np.repeat(np.arange(len(replay.steps)), replay.steps)[step],
        depth=depth,
        spine=depth <= leaves[step],
        right=_marks(first, target),
        fresh=_marks(fresh, target),
    )


def _marks(first: Int[np.ndarray, "nodes"], best: Int[np.ndarray, "nodes"]) -> np.ndarray:
    return np.where(first == NO_ROW, NO_ROW, (first == best).astype(np.int64))


def _first_of_model(trace: Trace) -> Int[np.ndarray, "T"]:
    """The draft model's best token after the text before each position.

    At temperature 0 it is the text's token where that has rank 0, and elsewhere another one, whose id is
    not recorded and does not matter.
    """
    if trace.draft_best is not None:
        return trace.draft_best
    other = trace.tokens + 1
    return np.where(trace.ranks == 0, trace.tokens, other)


def _first_of_source(
    trace: Trace, drafts: TextDrafts, budget: Budget
) -> Int[np.ndarray, "T depths"]:
    """The first child of the node that the text leads to, by position of the root and depth of the node."""
    drafted = drafts.drafted(budget)
    taken = drafted & drafts.on_text(trace.tokens, trace.ends)
    reached = np.where(drafts.above < 0, True, taken[drafts.above])
    firsts = np.flatnonzero(drafted & reached & (drafts.ranks == 0))
    table = np.full((drafts.positions, budget.depth + 1), NO_ROW)
    root = drafts.position_of[drafts.draft_of[firsts]]
    table[root, drafts.depths[firsts] - 1] = drafts.tokens[firsts]
    return table
