"""Replay on a recorded trace: what every step of a live run would accept, without a model.

A step that begins at position s walks the tree along the recorded ranks: from the root to the child of rank
`ranks[s]`, if there is one, from there to that of rank `ranks[s + 1]`, and so on. It emits one token more
than it accepts, and the next step begins after these. At temperature 0 this is the live run with this tree,
step by step; above, every step has the law that it has in a live run (see `Trace`).

The drafts of a text source are a function of the preceding text, so its tree at a position is known
whatever was drafted and verified before, and any budget within the recorded one can be replayed likewise.
Trees that grow by the draft's probabilities are replayed in `growth_replay`.

A trained head's rows below the root depend on where its tree is rooted. A trace of one holds, at every
position of its texts, the ranks along the tree that is rooted there (`Trace.path_ranks`), and steps walk
along these. Had they been recorded only at the roots of one run, they would stand where that run's drafts
failed or ended, which are not the positions at which a tree of another shape begins its steps.

Steps begin as long as fewer tokens are kept than the budget allows and no stop token came, as in
`treespec.decode`. Tokens that the last step of a text accepts beyond its end count in `accepted` and not in
`kept`; they need positions after the end, which `Trace.kept` separates. If a text has too few of these for
the tree's depth, its budget is reduced accordingly, so that every step is complete. No step is left out for
being long, which would bias the mean.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from treespec.plugins import Budget
from treespec.search.errors import InvalidTrace
from treespec.search.intervals import RESAMPLES, Interval, ratio
from treespec.search.latency.interpolation import Term
from treespec.search.latency.step_parts import StepParts, seconds_of
from treespec.search.traces.rule_notes import require_replayable
from treespec.search.traces.text_drafts import TextDrafts
from treespec.search.traces.trace import Trace
from treespec.tree import TreeShape

__all__ = ["EMITTED", "Replay", "replay", "replay_budget"]

EMITTED = (
    "tokens/step: emitted tokens, those past the end of a text included; a run's table shows kept ones "
    "(docs/guide.md, Tokens per step)"
)
"""Note below tables of replayed shapes."""

Levels: TypeAlias = tuple[tuple[int, ...], ...]
"""The draft passes of one step: for each pass, the number of children of every node that it ran."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay:
    """The steps of a tree, a growth or a budget on one trace.

    Args:
        starts: the position of the trace at which every step begins, text after text.
        accepted: accepted draft tokens of every step.
        kept: tokens of every step that the text keeps: accepted + 1, or fewer in a text's last step.
        offsets: `[texts + 1]`; steps of text i are `offsets[i]` up to, not including, `offsets[i + 1]`.
        file_of: `[texts]`, index of the file that each text is an excerpt of (`Trace.file_of`).
        max_depth: maximum number of edges of the trees.
        sizes: verified nodes of every step, the root included.
        sure: whether the step is proved to be a live run's (`treespec.search.choice.growth_replay`).
        levels: for every step and each pass of the draft, the number of children of every node that it ran;
            empty for a tree, whose passes are known from its shape, and without a draft model.
        ends_inside: whether the last accepted node of every step has children in its tree; None for a text
            source.
        shape: the tree; None if trees change from step to step.
        budget: the limits of a text source's drafts; None for a draft model.
    """

    starts: Int[np.ndarray, "steps"]
    accepted: Int[np.ndarray, "steps"]
    kept: Int[np.ndarray, "steps"]
    offsets: Int[np.ndarray, "texts_1"]
    file_of: Int[np.ndarray, "texts"]
    max_depth: int
    sizes: Int[np.ndarray, "steps"]
    sure: Bool[np.ndarray, "steps"]
    levels: Sequence[Levels]
    ends_inside: Bool[np.ndarray, "steps"] | None = None
    shape: TreeShape | None = None
    budget: Budget | None = None

    @cached_property
    def steps(self) -> Int[np.ndarray, "texts"]:
        """Number of steps of each text."""
        return np.diff(self.offsets)

    @cached_property
    def emitted(self) -> Int[np.ndarray, "texts"]:
        """Emitted tokens of each text, those past its end included."""
        return np.add.reduceat(self.accepted, self.offsets[:-1]) + self.steps

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per step, pooled over steps (block efficiency, tau)."""
        return float(self.emitted.sum() / len(self.accepted))

    @property
    def kept_per_step(self) -> float:
        """Kept tokens per step, pooled over steps: what tables that compare methods show."""
        return float(self.kept.sum() / len(self.accepted))

    @property
    def nodes_per_step(self) -> float:
        """Verified nodes per step, the root included."""
        return float(self.sizes.mean())

    @property
    def accepted_by_depth(self) -> Float[np.ndarray, "depth"]:
        """The share of steps that accept a node at depth 1, 2, ..., `max_depth`."""
        counts = np.bincount(self.accepted, minlength=self.max_depth + 1)
        return counts[::-1].cumsum()[::-1][1:] / len(self.accepted)

    def of_text(self, text: int) -> Int[np.ndarray, "steps"]:
        """Accepted draft tokens of every step of one text."""
        return self.accepted[self.offsets[text] : self.offsets[text + 1]]

    def interval(
        self, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> Interval:
        """Tokens per step with a bootstrap interval over texts.

        Excerpts of one file count as one text. The same seed draws the same texts for every tree on a
        trace. With a single text there is no interval, and its bounds are NaN.
        """
        emitted, steps = by_file(self.emitted, self.file_of), by_file(self.steps, self.file_of)
        return ratio(emitted, steps, level=level, resamples=resamples, seed=seed)

    def terms(self, parts: StepParts) -> list[Term]:
        """The time of all steps of each text, of growths and budgets, as a weighted sum of times."""
        index: dict[tuple[Levels, int], int] = {}  # the distinct kinds of steps
        steps = zip(self.levels, self.sizes.tolist(), strict=True)
        kind_of_step = np.array([index.setdefault(step, len(index)) for step in steps])
        passes = [[Counter(level) for level in levels] for levels, _ in index]
        terms = parts.grown(passes, [size for _, size in index])
        return [
            (curve, np.add.reduceat(weights[kind_of_step], self.offsets[:-1]))
            for curve, weights in terms
        ]

    def speed(self, parts: StepParts) -> Interval:
        """Emitted tokens per second with these times, with a bootstrap interval over the same texts.

        Some growths draft more on easy texts, so each text counts with the time of its own steps.
        """
        seconds = by_file(seconds_of(self.terms(parts)), self.file_of)
        return ratio(by_file(self.emitted, self.file_of), seconds)


def by_file(
    values: Real[np.ndarray, "texts"], file_of: Int[np.ndarray, "texts"]
) -> Real[np.ndarray, "files"]:
    """The sum of the texts' values over the excerpts of each file."""
    sums = np.zeros(int(file_of.max()) + 1, dtype=values.dtype)
    np.add.at(sums, file_of, values)
    return sums


def replay(trace: Trace, shape: TreeShape) -> Replay:
    """Replay the decoding of a trace's texts with this tree, without a model.

    Args:
        trace: a trace of decoding.
        shape: a tree with at most `trace.width` children a node.

    Raises:
        InvalidTrace: if the trace is of given texts or holds too few children, or one of its texts has too
            few positions for the tree's depth.

    Example:
        >>> trace = Trace(
        ...     offsets=[0, 5], tokens=[7] * 5, ranks=[0, 1, 2, 0, 0], probs=np.full((5, 2), 0.5),
        ...     accepted=np.full((5, 2), 0.5), law="iid", rule="rrs", sampling={}, width=2, kept=[3],
        ... )  # fmt: skip
        >>> replay(trace, TreeShape.kary(2, 2)).accepted.tolist()
        [2]
        >>> replay(trace, TreeShape.chain(2)).accepted.tolist()
        [1, 0]
    """
    require_decoded(trace)
    require_given_trees(trace)
    widest = max(map(len, shape.children))
    if widest > trace.width:
        raise InvalidTrace(
            f"the tree has a node with {widest} children, but the trace holds {trace.width} at "
            f"each position: record it again with width {widest}"
        )
    require_replayable(trace.rule, trace.width, shape)
    last = last_nodes(trace, child_table(shape), shape.depth)
    lengths = np.array(shape.depths)[last].tolist()
    steps = walked(trace, shape.depth, lengths.__getitem__)
    sizes = np.full(len(steps["starts"]), shape.size)
    inside = np.isin(last[steps["starts"]], shape.internal)
    return Replay(
        **steps, sizes=sizes, sure=sizes > 0, levels=(), ends_inside=inside, shape=shape
    )  # fmt: skip


def replay_budget(trace: Trace, budget: Budget) -> Replay:
    """Replay the decoding of a trace's texts with a text source's drafts within these limits.

    At temperature 0 the replay is the live run, step by step. Under `naive` and `onehot` above temperature
    0 steps have the law that they have in a live run, because a deterministic child is accepted if and only
    if the text continues with it.

    Raises:
        InvalidTrace: if the trace is of given texts or of a draft model, the limits exceed the recorded
            ones, or a text has too few positions for the budget's depth.
    """
    drafts = require_drafts(trace)
    require_decoded(trace)
    drafted = drafts.drafted(budget)
    position = drafts.position_of[drafts.draft_of]
    sizes = 1 + np.bincount(position[drafted], minlength=drafts.positions)
    accepted = np.zeros(drafts.positions, dtype=np.int64)
    taken = drafted & drafts.on_text(trace.tokens, trace.ends)
    np.maximum.at(accepted, position[taken], drafts.depths[taken])
    steps = walked(trace, budget.depth, accepted.tolist().__getitem__)
    sizes = sizes[steps["starts"]]
    return Replay(
        **steps, sizes=sizes, sure=sizes > 0, levels=[()] * len(sizes), budget=budget
    )  # fmt: skip


def walked(trace: Trace, depth: int, accepted_at: Callable[[int], int]) -> dict[str, Any]:
    """Where steps begin, and what they accept and keep: the first fields of `Replay`."""
    ends, first = trace.offsets[1:], trace.offsets[:-1]
    # Steps may begin where the whole tree is known, which takes `depth` positions.
    limits = np.minimum(first + trace.text_kept, ends - max(depth - 1, 0))
    short = np.flatnonzero(limits <= first)
    if len(short):
        text = int(short[0])
        raise InvalidTrace(
            f"text {text} of the trace has {int(ends[text] - first[text])} positions, but a tree of depth "
            f"{depth} needs as many: record more beyond the end of each text"
        )
    starts, accepted, kept, offsets = [], [], [], [0]
    for start, limit in zip(first.tolist(), limits.tolist(), strict=True):
        while start < limit:
            length = accepted_at(start)
            starts.append(start)
            accepted.append(length)
            kept.append(min(length + 1, limit - start))
            start += length + 1
        offsets.append(len(starts))
    columns = {"starts": starts, "accepted": accepted, "kept": kept, "offsets": offsets}
    arrays = {name: np.array(values) for name, values in columns.items()}
    return {**arrays, "file_of": trace.file_of, "max_depth": depth}


def require_decoded(trace: Trace) -> None:
    if trace.forced:
        raise InvalidTrace(
            "the trace is of given texts, which do not continue with the accepted tokens, so there are no "
            "steps to replay; record one while decoding (estimate_acceptance takes both)"
        )


def require_given_trees(trace: Trace) -> None:
    """Refuse the trace of a text source, on which no given tree can be replayed."""
    if trace.text_drafts is not None:
        depth, size, branching = trace.text_drafts.limits.tolist()
        raise InvalidTrace(
            "the trace is of a text source, which brings its own continuations, and no tree can be given "
            "to it: replay a budget, such as "
            f"--growth '{{kind: budget, depth: {depth}, size: {size}, branching: {branching}}}'"
        )


def require_drafts(trace: Trace) -> TextDrafts:
    """The drafts of a text source; refuses the trace of a draft model."""
    if trace.text_drafts is None:
        raise InvalidTrace(
            "the trace is of a draft model, but budgets apply to sources that bring their own "
            "continuations: replay a tree (--shapes), or record a method of such a source (`treespec trace "
            "--method`)"
        )
    return trace.text_drafts


def child_table(shape: TreeShape) -> Int[np.ndarray, "nodes ranks"]:
    """The child of each node by rank, -1 where there is none, with a last column of -1."""
    table = np.full((shape.size, max(map(len, shape.children)) + 1), -1, dtype=np.int64)
    table[list(shape.parents[1:]), list(shape.ranks[1:])] = np.arange(1, shape.size)
    return table


def last_nodes(
    trace: Trace, table: Int[np.ndarray, "nodes ranks"], depth: int
) -> Int[np.ndarray, "T"]:
    """The last node that a walk from each position reaches, for all positions level by level."""
    trace.require_levels(depth)
    count = len(trace.ranks)
    last = np.zeros(count, dtype=np.int64)
    start, node = np.arange(count), last.copy()
    for level in range(depth):
        inside = start + level < count
        start, node = start[inside], node[inside]
        node = table[node, np.minimum(trace.ranks_below(start, level), table.shape[1] - 1)]
        alive = node >= 0
        start, node = start[alive], node[alive]
        last[start] = node
    return last
