"""Growths on a recorded trace: what every step of a live run would have drafted and accepted.

The growth's own code grows and prunes each tree; what the draft would have answered stands in the trace's
`DraftRows`. At temperature 0 a step is the live run's, as long as the growth asks for recorded rows alone
(live rows come out of passes of other shapes, so that probabilities may differ in the last digit, and what
is tied within it may fall the other way). Under `naive` and `onehot` above temperature 0 the trees are as
sure, and steps have the law that they have in a live run.

A growth may ask for what hangs below a node that was not recorded, one outside of the best of its level at
the position where it leaves the text. Its children then count as worth nothing, and the step is *unsure*,
unless it is proved that they change nothing: where the best nodes are kept whatever they are
(`keeps_best`), and all that are kept are worth more than every node whose children are not known. Then the
nodes above that worth are drafted in any case, and the others could not have been kept. `GrowthReplay.sure`
says which steps these are; the study `growth_replay` holds them, and the others, against live runs of the
embedded pair.

Draws decide where a growth of the law WITHOUT_REPLACEMENT (`DySpec`) goes on, and draws off the text are
not recorded: it is replayed at temperature 0, where each node has one child, and refused above.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import Growth, MarginalGrowth, PruningGrowth
from treespec.search.arguments import of_class, takes
from treespec.search.errors import InvalidTrace
from treespec.search.growth.values import read_values
from treespec.search.rates.draft_rows import DraftRows
from treespec.search.rates.grown_steps import GrowthReplay, Levels
from treespec.search.rates.replay import replay, require_given_trees
from treespec.search.rates.rule_notes import by_member
from treespec.search.rates.trace import Trace
from treespec.tree import Law, TreeShape

__all__ = ["replay_growth"]

SHAPES_REMEMBERED = 2**12
"""Trees that are remembered: the first levels of most steps are alike."""


@takes(InvalidTrace, trace=of_class("a search.Trace", "Trace"))
def replay_growth(trace: Trace, growth: Growth) -> GrowthReplay:
    """Decode the texts of a trace again with trees that grow by what the draft thinks of each text.

    Args:
        trace: of decoding, with `draft_rows`.
        growth: one that states its laws, as those of `treespec.search.growth` do.

    Raises:
        InvalidTrace: if the trace is of given texts, of drawn children, of a rule that looks at more than
            what the text goes on with, or has no rows; if the growth draws its children above temperature
            0, is deeper than the rows, or asks for more children than they hold; or if a text has too few
            positions for a growth so deep.
    """
    require_given_trees(trace)
    name, laws = type(growth).__name__, getattr(growth, "laws", frozenset(Law))
    if Law.DETERMINISTIC not in laws:
        if not trace.greedy:
            raise InvalidTrace(
                f"growth '{name}' draws its children, and where it goes on depends on draws that no trace "
                "holds: replay it at temperature 0, or run it (`treespec run`)"
            )
        return _of_chain(trace, growth.max_depth)
    if isinstance(growth, MarginalGrowth):
        raise InvalidTrace(
            f"growth '{name}' takes the children of all nodes of a level from one row of the draft, and a "
            "trace holds the children that each node has of its own row: run it (`treespec run`)"
        )
    rows = _require_rows(trace, name)
    if growth.max_depth > rows.depth:
        raise InvalidTrace(
            f"growth '{name}' grows up to {growth.max_depth} deep, but the trace has draft rows for "
            f"{rows.depth} levels: record it again with --beam-depth {growth.max_depth}, or give less depth"
        )
    ends, starts = trace.offsets[1:], trace.offsets[:-1]
    limits = np.minimum(starts + trace.text_kept, ends - max(growth.max_depth - 1, 0))
    short = np.flatnonzero(limits <= starts)
    if len(short):
        text = int(short[0])
        raise InvalidTrace(
            f"text {text} of the trace has {int(ends[text] - starts[text])} positions, but growth '{name}' "
            f"is up to {growth.max_depth} deep: record more beyond the end of each text"
        )
    grown = _Grown(trace, rows, growth)
    steps, counts = [], []
    for start, limit in zip(starts.tolist(), limits.tolist(), strict=True):
        of_text = list(_steps(grown, start, limit))
        steps += of_text
        counts.append(len(of_text))
    *columns, levels = zip(*steps, strict=True)
    accepted, kept, sizes, sure = map(np.array, columns)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return GrowthReplay(
        accepted, kept, sizes, sure, offsets, trace.file_of, growth.max_depth, levels
    )


def _of_chain(trace: Trace, depth: int) -> GrowthReplay:
    """A growth of drawn children at temperature 0: one child after the other, all of them certain."""
    shape = TreeShape.chain(depth)
    replayed = replay(trace, shape)
    sizes = np.full(len(replayed.accepted), shape.size)
    levels = [((1,),) * depth] * len(sizes)
    return GrowthReplay(
        replayed.accepted,
        replayed.kept,
        sizes,
        sizes > 0,
        replayed.offsets,
        trace.file_of,
        depth,
        levels,
    )


def _require_rows(trace: Trace, name: str) -> DraftRows:
    if trace.forced:
        raise InvalidTrace(
            "the trace is of given texts: what was accepted there did not go on in the text, so there are "
            "no steps to replay; record one while decoding"
        )
    if Law.of(trace.law) is not Law.DETERMINISTIC or not by_member(trace.rule):
        raise InvalidTrace(
            f"growth '{name}' chooses among deterministic children, but the trace is of law '{trace.law}' "
            f"and rule '{trace.rule}': record one of law deterministic and rule greedy, naive or onehot"
        )
    if trace.draft_rows is None:
        raise InvalidTrace(
            f"growth '{name}' decides by what the draft thinks off the text's path, and the trace has no "
            "draft rows: record it again with --beam 8 (`treespec trace`)"
        )
    return trace.draft_rows


def _steps(grown: "_Grown", start: int, limit: int) -> Iterator[tuple[int, int, int, bool, Levels]]:
    """Accepted and kept tokens, nodes, whether they are sure, and passes, of the steps of one text."""
    while start < limit:
        accepted, size, sure, levels = grown.step(start)
        yield accepted, min(accepted + 1, limit - start), size, sure, levels
        start += accepted + 1


class _Grown:
    """Trees of one growth over the rows of a trace."""

    def __init__(self, trace: Trace, rows: DraftRows, growth: Growth) -> None:
        self._growth, self._name = growth, type(growth).__name__
        self._probs, self._text_ranks = rows.probs, rows.text_ranks
        self._first, self._below = rows.offsets, _below(trace, rows)

    def step(self, start: int) -> tuple[int, int, bool, Levels]:
        """Accepted tokens and nodes of the tree at a position, whether they are sure, and its passes."""
        growth, parents, probs = self._growth, [-1], [1.0]
        levels: list[tuple[int, ...]] = []
        rows, counts = [int(self._first[start])], [0]
        unknown: list[int] = []

        def known() -> Float[Tensor, "N"]:
            return torch.tensor(probs, dtype=torch.float64)

        while True:
            shape = _shape(tuple(parents))
            places = growth.next(shape, known)
            if not places:
                break
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
        kept = set(range(shape.size))
        if isinstance(growth, PruningGrowth):
            kept = set(map(int, growth.keep(shape, known)))
        accepted = self._accepted(start, shape, kept)
        return accepted, len(kept), self._sure(shape, known, kept, unknown), tuple(levels)

    def _require_width(self, children: int) -> None:
        width = self._probs.shape[1]
        if children > width:
            raise InvalidTrace(
                f"growth '{self._name}' asks for {children} children of a node, but the trace's draft rows "
                f"hold {width}: record it again with --beam {children}, or give less branching"
            )

    def _accepted(self, start: int, shape: TreeShape, kept: set[int]) -> int:
        """How far the kept nodes go along the text."""
        node, accepted = 0, 0
        while True:
            rank, children = int(self._text_ranks[start + accepted]), shape.children[node]
            if rank >= len(children) or children[rank] not in kept:
                return accepted
            node, accepted = children[rank], accepted + 1
            if accepted == shape.depth:
                return accepted

    def _sure(
        self,
        shape: TreeShape,
        known: Callable[[], Float[Tensor, "N"]],
        kept: set[int],
        unknown: Sequence[int],
    ) -> bool:
        """Whether children that are not known could have changed nothing."""
        if not unknown:
            return True
        if not getattr(self._growth, "keeps_best", False) or len(kept) == shape.size:
            return False
        paths = read_values(shape, known, getattr(self._growth, "calibration", None)).paths
        return bool(paths[sorted(kept)].min() > paths[unknown].max())


_shape = lru_cache(SHAPES_REMEMBERED)(TreeShape)


def _below(trace: Trace, rows: DraftRows) -> Int[np.ndarray, "R width"]:
    """The row of each child, -1 if it is not known: of the text's own token, the next position's first."""
    below, firsts = rows.children.copy(), rows.offsets[:-1]
    taken = np.flatnonzero(rows.text_ranks < rows.width)
    after = np.append(firsts[1:], -1)
    after[trace.offsets[1:] - 1] = -1  # nothing is recorded behind the end of a text
    below[firsts[taken], rows.text_ranks[taken]] = after[taken]
    return below
