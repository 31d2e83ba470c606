"""Record a trace of a trained head: at every position of texts, the draft that is rooted there.

The rows of an autoregressive head below the root read states that the head computed itself, and a head with
one row for each depth predicts positions after the root it was given. So what stands at depth 2 depends on
where the tree was rooted, and the record of a position holds all levels below it (`Trace.path_ranks`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import integer
from treespec.draft.drawn import ranking_of
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.marginal_drafter import MarginalDrafter
from treespec.experiments.measure.beam_recording import (
    DEPTH,
    RecordingGrowth,
    RowsOfPositions,
    positions,
    require_room_for_rows,
    rows_of_position,
)
from treespec.experiments.measure.recording import (
    POSITIONS_BEYOND,
    Position,
    PositionRecorder,
    trace_of,
)
from treespec.protocols import Coins, Growth, TreeModel
from treespec.sampling.children import require_children, top_k
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.search import InvalidTrace, Trace
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import Rule


@dataclass(frozen=True)
class TracedHead:
    """A target, and what makes a drafter with one of its trained heads along a growth."""

    target: TreeModel
    make: Callable[[Growth | TreeShape], HeadDrafter | MarginalDrafter]


class TextRecorder(PositionRecorder):
    """Records the target's text alone; what is drafted at its positions is recorded afterwards."""

    def _pass(self, roots: Sequence[int], coins: Coins) -> Iterator[Position]:
        nothing = (0.0,) * self.width
        rows = self.sampling(self._run(self._target, "target", roots))
        for root, row in zip(roots, rows, strict=True):
            bare = TokenTree(TreeShape.chain(0), torch.tensor([root]), None, self.law)
            rank, token = self._decided(bare, row, coins)
            yield Position(rank, token, nothing, nothing, int(row.argmax()), -1)


def require_member(law: Law, rule: Rule) -> None:
    """Refuse laws and rules under which the text alone does not say which child is accepted.

    Raises:
        InvalidTrace: for other than deterministic children and a rule that follows the text.
    """
    if Law.of(law) is not Law.DETERMINISTIC or not rule.by_member:
        raise InvalidTrace(
            f"law '{law}' with rule '{rule}' cannot be traced with a trained head, because its rows below "
            "drawn tokens off the text are not recorded: set law: deterministic, and rule: greedy (above "
            "temperature 0: naive or onehot)"
        )


def record_head(
    head: TracedHead,
    prompts_ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    rule: Rule,
    width: int,
    max_new_tokens: int,
    beyond: int = POSITIONS_BEYOND,
    beam: int = 0,
    beam_depth: int = DEPTH,
    progress: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> Trace:
    """Record which of the deterministic children of a head's drafts are the text's, at every position.

    The target decodes (or follows) each text first; one pass over it then gives the features of all its
    positions, and the head drafts at each of them. At temperature 0 replays are live runs; above it, under
    rules that follow the text, steps have the law of a live run. Accepted children count as accepted with
    probability 1.

    Args:
        head: target and head.
        prompts_ids: token ids of the prompts.
        sampling: sampling settings.
        rule: greedy, naive or onehot.
        width: children of each node; at least `beam`, and raised to it.
        max_new_tokens: maximum number of tokens of each text.
        beyond: as for `record`.
        beam: as for `record`; a head with one row for each depth needs none, as all its rows are recorded.
        beam_depth: levels that are recorded; of a head with one row for each depth, all are.
        progress: called with a message as each text begins.
        settings: others of `recording.trace_of`.

    Raises:
        InvalidTrace: see `record` and `require_member`.
        InvalidTree: if the vocabulary has fewer tokens than a node has children.
    """
    require_member(Law.DETERMINISTIC, rule)
    target, width = head.target, max(width, beam)
    require_children(width, target.vocab_size, Law.DETERMINISTIC)
    bare = head.make(TreeShape.chain(1))
    marginal = isinstance(bare, MarginalDrafter)
    by_depth = marginal and getattr(sampling, "processors", None) is None
    levels = bare.depth if marginal else integer("beam_depth", beam_depth, 1, InvalidTrace)
    growth = RecordingGrowth(beam, levels) if beam and not by_depth else None
    drafter = head.make(growth or TreeShape.chain(levels if marginal else 1))
    rows_each = levels if growth is None else rows_of_position(beam, levels)
    require_room_for_rows(len(prompts_ids) * (max_new_tokens + beyond), rows_each, width)
    recorder = TextRecorder(head, sampling=sampling, law=Law.DETERMINISTIC, rule=rule, width=width)
    trace = trace_of(
        recorder, prompts_ids, vocab_size=target.vocab_size, reach=beyond + levels, beyond=beyond,
        context=min(target.max_length, drafter.max_length), max_new_tokens=max_new_tokens,
        progress=progress, **settings,
    )  # fmt: skip
    rows, coins, ranking = RowsOfPositions(), TorchCoins(0), ranking_of(sampling)
    nothing, below, probs, best = torch.zeros(levels, target.vocab_size), [], [], []
    texts = [text.tolist() for text in np.split(trace.tokens, trace.offsets[1:-1])]
    lending, device = target.fresh(), getattr(target, "device", None)

    def places() -> Iterator[tuple[int, Sequence[int]]]:
        for i, given in enumerate(zip(prompts_ids, texts, strict=True)):
            progress(f"draft rows of text {i + 1}/{len(texts)}")
            yield from positions(drafter, *given, target=lending, device=device)

    for root, rest in places():
        tree = drafter.propose(coins) if marginal or growth is not None else None
        # A head that knows nothing yet, after a prompt of one token, drafts the root alone.
        known = tree is None or tree.shape.size > 1
        logits = _along(drafter, root, rest, levels, coins) if known else nothing
        drafted = top_k(logits, width)
        shares = ranking(logits).gather(1, drafted).double().cpu().numpy() * known
        ranks = _ranks(drafted.tolist(), rest, levels) if known else [width] * levels
        if growth is not None and tree is not None and known:
            rows.add_beam(tree, growth, rest[0])
        elif by_depth:
            rows.add(range(-1, levels - 1), [0, *[-1] * (levels - 1)], shares, ranks[0])
        elif growth is not None:
            rows.add([-1], [0], shares[:1, :beam], ranks[0])
        below.append(ranks)
        probs.append(shares[0])
        best.append(int(drafted[0, 0]) if known else -1)
    ranks = np.array(below)
    return replace(
        trace,
        ranks=ranks[:, 0],
        path_ranks=ranks,
        probs=np.array(probs).clip(0, 1),
        accepted=(ranks[:, :1] == np.arange(width)).astype(float),
        draft_rows=rows.rows() if by_depth or growth is not None else None,
        draft_best=None if trace.target_best is None else np.array(best),
    )


def _along(
    drafter: HeadDrafter | MarginalDrafter,
    root: int,
    rest: Sequence[int],
    levels: int,
    coins: Coins,
) -> Float[Tensor, "levels V"]:
    """The logits at the root and along the text below it, all of one tree; beyond its end, unspecified."""
    path = [root, *rest[: levels - 1], *[rest[-1]] * (levels - len(rest))][:levels]
    nodes = range(levels)
    parents = [*range(-1, levels - 1), *nodes]
    logits = drafter.draw_into(
        parents, [*path, *[-1] * levels], {node: [levels + node] for node in nodes}, {}, coins
    )
    return torch.stack([logits[node] for node in nodes])


def _ranks(drafted: Sequence[Sequence[int]], rest: Sequence[int], levels: int) -> list[int]:
    """The rank of the text's tokens along the tree, the width from where it leaves it."""
    width, ranks = len(drafted[0]), []
    for children, token in zip(drafted, rest, strict=False):
        if token not in children:
            break
        ranks.append(children.index(token))
    return [*ranks, *[width] * (levels - len(ranks))]
