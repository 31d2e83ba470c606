"""Replay growths on a recorded trace: what every step of a live run would draft and accept.

The growth's own code grows and prunes each tree; the draft's probabilities come from the trace's
`DraftRows`. At temperature 0 a step is the live run's, as long as the growth asks for recorded rows only
(live rows come from passes of other shapes, so probabilities may differ in the last digit, and ties within
it may resolve differently). Under `naive` and `onehot` above temperature 0 the trees are equally certain,
and steps have the law that they have in a live run.

A growth may ask for the children of a node without a recorded row: one outside the best of its level at
the position where it leaves the text. Its children then count as worth nothing, and the step is *unsure*,
unless these children provably change nothing: if the growth always keeps the best nodes (`keeps_best`), and
every kept node is worth more than every node whose children are not known. Then all nodes above that value
are drafted in any case, and the others could not have been kept. `Replay.sure` marks the sure steps;
RESULTS.md (`growth_replay`) compares them, and the others, with live runs of the embedded pair.

On a trace of a trained head, all rows of a tree are those of the position at which it is rooted. Of a head
with one row for each depth every row is recorded, so growths over marginals can be replayed too.

Where a growth of the law WITHOUT_REPLACEMENT (`DySpec`) expands next depends on draws, and draws off the
text are not recorded: such a growth is replayed at temperature 0, where each node has one child, and
refused above.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.growth import nodes_kept, rounds, shape_of
from treespec.protocols import Growth, MarginalGrowth, PruningGrowth
from treespec.search.errors import InvalidTrace
from treespec.search.growth.values import read_values
from treespec.search.traces.draft_rows import TOLERANCE, DraftRows
from treespec.search.traces.replay import (
    Levels,
    Replay,
    replay,
    require_decoded,
    require_given_trees,
    walked,
)
from treespec.search.traces.rule_notes import by_member
from treespec.search.traces.trace import Trace
from treespec.tree import Law, TreeShape

MOST_PARTS = 2**18
"""Largest number of tokens that share what a recorded row lacks."""


def replay_growth(trace: Trace, growth: Growth) -> Replay:
    """Replay the decoding of a trace's texts with trees that grow by the draft's probabilities."""
    require_given_trees(trace)
    name, laws = type(growth).__name__, getattr(growth, "laws", frozenset(Law))
    if Law.DETERMINISTIC not in laws:
        if not trace.greedy:
            raise InvalidTrace(
                f"growth '{name}' draws its children, and where it expands next depends on draws that no "
                "trace holds: replay it at temperature 0, or run it (`treespec run`)"
            )
        return _of_chain(trace, growth.max_depth)
    by_depth = trace.draft_rows is not None and trace.draft_rows.by_depth
    if isinstance(growth, MarginalGrowth) and not by_depth:
        raise InvalidTrace(
            f"growth '{name}' takes the children of all nodes of a level from one row of the draft, but "
            "the trace holds a separate row for each node: run it (`treespec run`)"
        )
    rows = _require_rows(trace, name)
    if growth.max_depth > rows.depth:
        again = f"record it again with --beam-depth {growth.max_depth}, or give less depth"
        raise InvalidTrace(
            f"growth '{name}' grows to depth {growth.max_depth}, but the trace has draft rows for "
            f"{rows.depth} levels: {'the head drafts no deeper' if by_depth else again}"
        )
    over_rows = isinstance(growth, MarginalGrowth)
    grown, seen = (_OverRows if over_rows else _Grown)(trace, rows, growth), []

    def accepted_at(start: int) -> int:
        accepted, *rest = grown.step(start)
        seen.append(rest)
        return accepted

    steps = walked(trace, growth.max_depth, accepted_at)
    sizes, sure, levels, inside = zip(*seen, strict=True)
    return Replay(
        **steps, sizes=np.array(sizes), sure=np.array(sure), levels=levels,
        ends_inside=np.array(inside),
    )  # fmt: skip


def _of_chain(trace: Trace, depth: int) -> Replay:
    """A growth of drawn children at temperature 0: a chain of children with probability 1."""
    chain = replay(trace, TreeShape.chain(depth))
    return replace(chain, levels=[((1,),) * depth] * len(chain.sizes), shape=None)


def _require_rows(trace: Trace, name: str) -> DraftRows:
    require_decoded(trace)
    if Law.of(trace.law) is not Law.DETERMINISTIC or not by_member(trace.rule):
        raise InvalidTrace(
            f"growth '{name}' chooses among deterministic children, but the trace is of law '{trace.law}' "
            f"and rule '{trace.rule}': record one of law deterministic and rule greedy, naive or onehot"
        )
    if trace.draft_rows is None:
        raise InvalidTrace(
            f"growth '{name}' depends on the draft's probabilities off the text's path, but the trace has "
            "no draft rows: record it again with --beam 8 (`treespec trace`)"
        )
    return trace.draft_rows


class _Grown:
    """The trees of one growth on the draft rows of a trace."""

    def __init__(self, trace: Trace, rows: DraftRows, growth: Growth) -> None:
        self._growth, self._name = growth, type(growth).__name__
        self._probs, self._rank = rows.probs, _ranks(trace, rows)
        self._first, self._below = rows.offsets, _below(trace, rows)

    def step(self, start: int) -> tuple[int, int, bool, Levels, bool]:
        """Accepted tokens and nodes of the tree at a position, whether these are sure, and its passes.

        Last, whether the last accepted node has children.
        """
        growth, parents, probs = self._growth, [-1], [1.0]
        levels: list[tuple[int, ...]] = []
        rows, counts = [int(self._first[start])], [0]
        unknown: list[int] = []

        def known() -> Float[Tensor, "N"]:
            return torch.tensor(probs, dtype=torch.float64)

        for places in rounds(growth, parents, known):
            levels.append(tuple(int(k) for _, k in places))
            for node, k in places:
                first, counts[node] = counts[node], counts[node] + k
                self._require_width(counts[node])
                row = rows[node]
                if row < 0:
                    unknown.append(node)
                    probs += [0.0] * k
                    rows += [-1] * k
                else:
                    probs += self._probs[row, first : first + k].tolist()
                    rows += self._below[row, first : first + k].tolist()
                parents += [node] * k
                counts += [0] * k
        shape = shape_of(tuple(parents))
        kept = set(range(shape.size))
        if isinstance(growth, PruningGrowth):
            kept = nodes_kept(growth, shape, known)
        last = self._last(start, shape, kept)
        sure, inside = (
            self._sure(shape, known, kept, unknown),
            not kept.isdisjoint(shape.children[last]),
        )
        return shape.depths[last], len(kept), sure, tuple(levels), inside

    def _require_width(self, children: int) -> None:
        width = self._probs.shape[1]
        if children > width:
            raise InvalidTrace(
                f"growth '{self._name}' asks for {children} children of a node, but the trace's draft rows "
                f"hold {width}: record it again with --beam {children}, or give less branching"
            )

    def _last(self, start: int, shape: TreeShape, kept: set[int]) -> int:
        """The last kept node along the text."""
        node = 0
        while shape.depths[node] < shape.depth:
            rank, children = self._rank(start, shape.depths[node]), shape.children[node]
            if rank >= len(children) or children[rank] not in kept:
                break
            node = children[rank]
        return node

    def _sure(
        self,
        shape: TreeShape,
        known: Callable[[], Float[Tensor, "N"]],
        kept: set[int],
        unknown: Sequence[int],
    ) -> bool:
        """Whether the unknown children provably change nothing."""
        if not unknown:
            return True
        if not getattr(self._growth, "keeps_best", False) or len(kept) == shape.size:
            return False
        paths = read_values(shape, known, getattr(self._growth, "calibration", None)).paths
        return bool(paths[sorted(kept)].min() > paths[unknown].max())


class _OverRows:
    """The trees that a growth builds over the rows of a head with one row for each depth."""

    def __init__(self, trace: Trace, rows: DraftRows, growth: Growth) -> None:
        assert isinstance(growth, MarginalGrowth)
        self._growth, self._rows, self._rank = growth, rows, _ranks(trace, rows)

    def step(self, start: int) -> tuple[int, int, bool, Levels, bool]:
        """As `_Grown.step`. The tree's tokens are ranks.

        It is sure if at no depth the last recorded child is drafted: then no child beyond it would be.
        """
        depth, width = self._growth.max_depth, self._rows.width
        first = int(self._rows.offsets[start])
        probs = self._rows.probs[first : first + depth]
        tree = self._growth.tree_over(_distributions(probs), 0)
        shape, ranks, node = tree.shape, tree.token_ids, 0
        while shape.depths[node] < depth:
            rank = self._rank(start, shape.depths[node])
            matching = [child for child in shape.children[node] if ranks[child] == rank]
            if rank >= width or not matching:
                break
            (node,) = matching
        sure = max(ranks[1:], default=0) < width - 1
        return shape.depths[node], shape.size, sure, ((1,),) * depth, bool(shape.children[node])


def _distributions(probs: Float[np.ndarray, "D width"]) -> Float[Tensor, "D V"]:
    """Recorded rows with their rest, in parts that are at most as probable as the last recorded child."""
    rest = (1 - probs.sum(axis=1)).clip(0)
    # A rest too small to matter is one part: the last recorded child may be less probable by far.
    least = np.maximum(probs[:, -1], rest / MOST_PARTS)
    parts = [1 if r < TOLERANCE else math.ceil(r / p) for r, p in zip(rest, least, strict=True)]
    rows = np.zeros((len(probs), probs.shape[1] + max(parts)))
    rows[:, : probs.shape[1]] = probs
    for row, left, count in zip(rows, rest, parts, strict=True):
        row[probs.shape[1] : probs.shape[1] + count] = left / count
    return torch.from_numpy(rows)


def _ranks(trace: Trace, rows: DraftRows) -> Callable[[int, int], int]:
    """The rank of the text's token, by the position of a tree's root and the level in the tree."""
    below, at = trace.path_ranks, rows.text_ranks
    if below is None:
        return lambda start, level: int(at[start + level])
    return lambda start, level: int(below[start, level])


def _below(trace: Trace, rows: DraftRows) -> Int[np.ndarray, "R width"]:
    """The row of each child, -1 if unknown.

    For the text's own token it is the next position's first row, if rows depend on the text alone.
    """
    if trace.path_ranks is not None:
        return rows.children
    below, first_rows = rows.children.copy(), rows.offsets[:-1]
    taken = np.flatnonzero(rows.text_ranks < rows.width)
    next_first = np.append(first_rows[1:], -1)
    next_first[trace.offsets[1:] - 1] = -1  # nothing is recorded after the end of a text
    below[first_rows[taken], rows.text_ranks[taken]] = next_first[taken]
    return below
