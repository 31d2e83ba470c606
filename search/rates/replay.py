"""Replay a static tree on a recorded trace: what every step of a live run would accept, without a model.

A step that begins at position s walks the tree along the recorded ranks: from the root to the child of rank
`ranks[s]`, if there is one, from there to that of rank `ranks[s + 1]`, and so on. It emits one token more
than it accepts, and the next step begins after these. At temperature 0 this is the live run with this tree,
step by step; above, every step has the law that it has in a live run (see `Trace`).

Steps begin as long as fewer tokens are kept than the budget allows and no stop token came, as in
`treespec.decode`. Tokens that the last step of a text accepts beyond its end count in `accepted` and not in
`kept`; they need positions after the end, which `Trace.kept` separates. If a text has too few of these for
the tree's depth, its budget is reduced accordingly, so that every step is complete. No step is left out for
being long, which would bias the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Real

from treespec.door import integer
from treespec.search.arguments import SHAPE, of_class, takes
from treespec.search.errors import InvalidLimit, InvalidTrace
from treespec.search.intervals import RESAMPLES, Interval, ratio
from treespec.search.rates.rule_notes import require_replayable
from treespec.search.rates.trace import Trace
from treespec.tree import TreeShape

__all__ = [
    "EMITTED",
    "Replay",
    "ReplayedSteps",
    "by_file",
    "child_table",
    "replay",
    "replay_many",
    "require_given_trees",
    "step_starts",
]

EMITTED = (
    "tokens/step: emitted tokens, those past the end of a text included; a run's table shows kept ones "
    "(docs/guide.md, Tokens per step)"
)
"""Note below tables of replayed shapes."""

LARGEST_TABLE = 2**24
"""Limit on the entries of a tree's table of children: its nodes times its maximum branching."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReplayedSteps:
    """The steps of a tree or a growth on one trace.

    Args:
        accepted: accepted draft tokens of every step, text after text.
        kept: tokens of every step that the text keeps: accepted + 1, or fewer in a text's last step.
        offsets: `[texts + 1]`; steps of text i are `offsets[i]` up to, not including, `offsets[i + 1]`.
        file_of: `[texts]`, index of the file that each text is an excerpt of (`Trace.file_of`).
    """

    accepted: Int[np.ndarray, "steps"]
    kept: Int[np.ndarray, "steps"]
    offsets: Int[np.ndarray, "texts_1"]
    file_of: Int[np.ndarray, "texts"]

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

    def interval(
        self, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> Interval:
        """Tokens per step with a bootstrap interval over texts.

        Excerpts of one file count as one text. The same seed draws the same texts for every tree on a
        trace. With a single text there is no interval, and its bounds are NaN.
        """
        emitted, steps = by_file(self.emitted, self.file_of), by_file(self.steps, self.file_of)
        return ratio(emitted, steps, level=level, resamples=resamples, seed=seed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay(ReplayedSteps):
    """The steps of one tree on one trace.

    Args:
        shape: the tree.
        accepted, kept, offsets, file_of: see `ReplayedSteps`.
    """

    shape: TreeShape

    @property
    def accepted_by_depth(self) -> Float[np.ndarray, "depth"]:
        """The share of steps that accept a node at depth 1, 2, ..., `shape.depth`."""
        counts = np.bincount(self.accepted, minlength=self.shape.depth + 1)
        return counts[::-1].cumsum()[::-1][1:] / len(self.accepted)

    def of_text(self, text: int) -> Int[np.ndarray, "steps"]:
        """Accepted draft tokens of every step of one text.

        Raises:
            InvalidLimit: if there is no such text.
        """
        text = integer("text", text, 0, InvalidLimit, len(self.offsets) - 2)
        return self.accepted[self.offsets[text] : self.offsets[text + 1]]


def by_file(
    values: Real[np.ndarray, "texts"], file_of: Int[np.ndarray, "texts"]
) -> Real[np.ndarray, "files"]:
    """The sum of the texts' values over the excerpts of each file."""
    sums = np.zeros(int(file_of.max()) + 1, dtype=values.dtype)
    np.add.at(sums, file_of, values)
    return sums


@takes(InvalidTrace, trace=of_class("a search.Trace", "Trace"), shape=SHAPE)
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
    return replay_many([trace], [shape])[0][0]


def replay_many(traces: Sequence[Trace], shapes: Sequence[TreeShape]) -> list[list[Replay]]:
    """Replay many trees on traces; returns a list for each trace, with a replay for each tree.

    For each tree the accepted lengths of all positions are found together, level by level.

    Raises:
        InvalidTrace, InvalidLimit: see `replay`; or if there is no trace or no tree.
    """
    if isinstance(traces, Trace) or not len(traces):
        raise InvalidLimit("traces must be a list of at least one trace")
    if isinstance(shapes, TreeShape) or not len(shapes):
        raise InvalidLimit("shapes must be a list of at least one tree")
    for trace in traces:
        if trace.forced:
            raise InvalidTrace(
                "the trace is of given texts, which do not continue with the accepted tokens, so there are "
                "no steps to replay; record one while decoding (estimate_acceptance takes both)"
            )
        require_given_trees(trace)
        for shape in shapes:
            _require_width(trace, shape)
    tables = [child_table(shape) for shape in shapes]
    replayed = []
    for trace in traces:
        walk = _Walk(trace)
        replayed.append([walk.replay(s, table) for s, table in zip(shapes, tables, strict=True)])
    return replayed


def step_starts(trace: Trace, shape: TreeShape) -> Int[np.ndarray, "steps"]:
    """The positions of a trace at which the steps of this tree begin.

    Raises:
        InvalidTrace: see `replay`.
    """
    replayed = replay(trace, shape)
    emitted = replayed.accepted + 1
    before = np.cumsum(emitted) - emitted  # by all earlier steps, past the ends of texts too
    within = before - np.repeat(before[replayed.offsets[:-1]], replayed.steps)
    return np.repeat(trace.offsets[:-1], replayed.steps) + within


def require_given_trees(trace: Trace) -> None:
    """Refuse the trace of a text source, on which no given tree can be replayed.

    Raises:
        InvalidTrace: with an example of what can be replayed instead.
    """
    if trace.text_drafts is not None:
        depth, size, branching = trace.text_drafts.limits.tolist()
        raise InvalidTrace(
            "the trace is of a text source, which brings its own continuations, and no tree can be given "
            "to it: replay a budget, such as "
            f"--growth '{{kind: budget, depth: {depth}, size: {size}, branching: {branching}}}'"
        )


def _require_width(trace: Trace, shape: TreeShape) -> None:
    widest = max(map(len, shape.children))
    if widest > trace.width:
        raise InvalidTrace(
            f"the tree has a node with {widest} children, but the trace holds {trace.width} at "
            f"each position: record it again with width {widest}"
        )
    require_replayable(trace.rule, trace.width, shape)


def child_table(shape: TreeShape) -> Int[np.ndarray, "nodes ranks"]:
    """The child of each node by rank, -1 where there is none.

    Raises:
        InvalidLimit: if it would have more than `LARGEST_TABLE` entries.
    """
    entries = shape.size * (max(map(len, shape.children)) + 1)
    if entries > LARGEST_TABLE:
        raise InvalidLimit(
            f"a tree of {shape.size} nodes with up to {entries // shape.size - 1} children a node is too "
            f"large to replay: nodes times children may be at most {LARGEST_TABLE:,}"
        )
    table = np.full((shape.size, max(map(len, shape.children)) + 1), -1, dtype=np.int64)
    table[list(shape.parents[1:]), list(shape.ranks[1:])] = np.arange(1, shape.size)
    return table


class _Walk:
    """A trace, prepared to walk trees along it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ends = trace.offsets[1:]
        self._starts = trace.offsets[:-1]
        self._limits = self._starts + trace.text_kept

    def replay(self, shape: TreeShape, table: Int[np.ndarray, "nodes ranks"]) -> Replay:
        depth = shape.depth
        # Steps may begin where the whole tree is known, which takes `depth` positions.
        limits = np.minimum(self._limits, self._ends - np.maximum(depth - 1, 0))
        short = np.flatnonzero(limits <= self._starts)
        if len(short):
            text = int(short[0])
            raise InvalidTrace(
                f"text {text} of the trace has {int(self._ends[text] - self._starts[text])} positions, but "
                f"a tree of depth {depth} needs {depth}: record more beyond the end of each text"
            )
        lengths = self._lengths(table, depth).tolist()
        steps, counts = [], []
        for start, limit in zip(self._starts.tolist(), limits.tolist(), strict=True):
            before = len(steps)
            while start < limit:
                steps.append(start)
                start += lengths[start] + 1
            counts.append(len(steps) - before)
        accepted = np.array([lengths[step] for step in steps])
        ends = np.repeat(limits, counts)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        kept = np.minimum(accepted + 1, ends - np.array(steps))
        return Replay(
            shape=shape, accepted=accepted, kept=kept, offsets=offsets, file_of=self._trace.file_of
        )

    def _lengths(self, table: Int[np.ndarray, "nodes ranks"], depth: int) -> Int[np.ndarray, "T"]:
        """The number of tokens that a step from each position accepts."""
        ranks = np.minimum(self._trace.ranks, table.shape[1] - 1)
        lengths = np.zeros(len(ranks), dtype=np.int64)
        start, node = np.arange(len(ranks)), np.zeros(len(ranks), dtype=np.int64)
        for level in range(depth):
            inside = start + level < len(ranks)
            start, node = start[inside], node[inside]
            node = table[node, ranks[start + level]]
            alive = node >= 0
            start, node = start[alive], node[alive]
            lengths[start] += 1
        return lengths
