"""Record what trained heads and draft models draft at many positions of a text in a few passes.

Drafts that are rooted at different tokens of a text do not depend on each other, so they are branches of
one tree: the text is its spine, and the draft of each position hangs below its root. Every level of all
these drafts is one pass. What is recorded at a position is what `record_head` and `record` record there
(tests compare them), but the rows are those that a best-first search expands, and no others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft import ModelDrafter
from treespec.draft.drawn import ranking_of
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.head_model import HeadModel
from treespec.draft.trained.marginal_drafter import MarginalDrafter, spread
from treespec.draft.trained.medusa import Medusa
from treespec.experiments.config.samplings import settings_of
from treespec.sampling.children import top_k
from treespec.sampling.distributions import Sampling, require_finite
from treespec.search import Trace
from treespec.search.growth.values import least_of_best
from treespec.search.traces.draft_rows import DraftRows
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import greedy

POSITIONS_PER_PASS = 16
"""Positions whose drafts grow in one tree."""

GREEDY = Sampling(temperature=0.0)
RANKING = ranking_of(GREEDY)


@dataclass(frozen=True)
class KnownText:
    """A text whose drafts are recorded.

    Args:
        prompt: token ids before it, at least two.
        tokens: `[m]`, its token ids.
        features: the target's, of all tokens but the last; None if the drafter reads none.
    """

    prompt: Int[Tensor, "P"]
    tokens: Int[Tensor, "m"]
    features: Float[Tensor, "T F H"] | None = None


@dataclass(frozen=True, eq=False)
class Drafts:
    """The drafts of consecutive positions of a text.

    Args:
        text_ranks: `[n, levels]`, the rank of the text's token at each depth below the root, given the text
            down to there; the width if it is no child, or if the text ends before.
        rows: for each position, its rows: the parent's row, the rank among its siblings (-1 for all of
            them), and the probabilities of its children; see `DraftRows`.
        root_logits: `[n, v]`, at the roots.
        path_logits: after each further token of the text, given the text down to there: for the depths from
            2 on the rows of the first positions, as far as the text goes. None of a draft model, whose row
            after a token is that of the root there.
        ids: the target's token of each of their columns; None if these are the ids.
    """

    text_ranks: Int[np.ndarray, "n levels"]
    rows: Sequence[tuple[Sequence[int], Sequence[int], Float[np.ndarray, "R width"]]]
    root_logits: Float[Tensor, "n v"]
    path_logits: Sequence[Float[Tensor, "m v"]] = ()
    ids: Int[Tensor, " v"] | None = None

    def without_logits(self) -> "Drafts":
        """The same with less memory, as a trace needs it."""
        return replace(self, root_logits=self.root_logits[:0].clone(), path_logits=())


def drafts_of(
    drafter: ModelDrafter, text: KnownText, count: int, *, width: int, levels: int, best: int
) -> Iterator[Drafts]:
    """The drafts at the first positions of a text, some positions at a time.

    Args:
        drafter: a fresh drafter of a head or a draft model, along whatever growth.
        text: the text.
        count: the number of positions.
        width: children of a node.
        levels: depth of the drafts; less if the head has rows for fewer depths.
        best: the rows are those at which a search for so many nodes of largest probability looks.

    Raises:
        NonFiniteLogits: if the head or the model returns NaN or infinite logits.
    """
    if isinstance(drafter, MarginalDrafter):
        yield from _by_depth(drafter, text, count, width, min(levels, drafter.depth))
        return
    ids, last = torch.cat([text.prompt, text.tokens]), len(text.prompt) - 1
    own, ids_of_columns = isinstance(drafter, HeadDrafter), None
    model: Any = drafter.model
    if isinstance(model, HeadModel):  # rows over its own tokens, which may be a sixth of all
        ids_of_columns, model = model.net.kept, model.of_its_tokens()
    if own:
        model.give(model.fused(_some(text.features)[:last]), anew=True)
    model.prefill(text.prompt[:-1])
    for start in range(0, count, POSITIONS_PER_PASS):
        end = min(start + POSITIONS_PER_PASS, count)
        if own:  # the state of the first root waits since the prefill
            states = _some(text.features)[last - 1 + max(start, 1) : last - 1 + end]
            model.give(model.fused(states))
        forest = _Forest(model, ids[last + start : last + end], ids_of_columns)
        rest = text.tokens[start:].tolist()
        ranks = _Ranks(rest, end - start, width, levels)
        yield _grown(forest, ranks, width=width, levels=levels, best=best, own=own)
        model.keep(range(end - start))


def trace_of_drafts(
    texts: Sequence[KnownText],
    kept: Sequence[int],
    drafts: Sequence[Sequence[Drafts]],
    *,
    rows_of_text: bool,
) -> Trace:
    """The trace of greedy texts, for trees of deterministic children at temperature 0.

    Args:
        texts: the target's own greedy texts.
        kept: `[texts]`, the positions of each at which steps may begin.
        drafts: for each text, those at its first positions: at all of them if rows depend on the text alone
            (a draft model's), else at the kept ones. Trees are never rooted at the others, at which the
            trace says that nothing is drafted.
        rows_of_text: whether rows depend on the text alone.
    """
    width = drafts[0][0].rows[0][2].shape[1]
    levels = drafts[0][0].text_ranks.shape[1]
    nothing = ([-1], [0], np.zeros((1, width)))
    found, rows, counts = [], [], []
    for text, parts in zip(texts, drafts, strict=True):
        ranks = np.full((len(text.tokens), levels), width)
        known = np.concatenate([part.text_ranks for part in parts])
        ranks[: len(known)] = known
        found.append(ranks)
        of_text = [row for part in parts for row in part.rows]
        rows += [*of_text, *[nothing] * (len(text.tokens) - len(of_text))]
    ranks = np.concatenate(found)
    counts = [len(parents) for parents, _, _ in rows]
    # Where the text leaves the tree, nothing below is reached.
    left = np.cumsum(ranks == width, axis=1) > 0
    probs = np.stack([row[2][0] for row in rows])
    return Trace(
        offsets=np.cumsum([0, *(len(text.tokens) for text in texts)]),
        tokens=torch.cat([text.tokens for text in texts]).cpu().numpy(),
        ranks=ranks[:, 0],
        probs=probs,
        accepted=(ranks[:, :1] == np.arange(width)).astype(float),
        law=str(Law.DETERMINISTIC),
        rule=str(greedy),
        sampling=settings_of(GREEDY),
        width=width,
        kept=np.array(kept),
        draft_rows=DraftRows(
            offsets=np.cumsum([0, *counts]),
            parents=np.concatenate([np.array(parents) for parents, _, _ in rows]),
            ranks=np.concatenate([np.array(of_row) for _, of_row, _ in rows]),
            probs=np.concatenate([of_row for _, _, of_row in rows]),
            text_ranks=ranks[:, 0],
        ),
        path_ranks=None if rows_of_text else np.where(left, width, ranks),
    )


class _Forest:
    """The drafts of consecutive tokens of a text: one tree of the model, in which nothing is committed."""

    def __init__(self, model: Any, spine: Int[Tensor, "n"], ids: Int[Tensor, " v"] | None) -> None:
        self._model, self._device, self._parents = model, spine.device, [*range(-1, len(spine) - 1)]
        self.ids = ids
        self.roots = self._checked(model.run(spine, tuple(self._parents)).logits)

    def below(self, parents: Sequence[int], tokens: Sequence[int]) -> tuple[int, Tensor]:
        """The index of the first of these new nodes, and the logits after them."""
        first = len(self._parents)
        self._parents += parents
        row = torch.tensor(tokens, dtype=torch.long, device=self._device)
        return first, self._checked(self._model.run(row, tuple(self._parents), first).logits)

    def _checked(self, logits: Float[Tensor, "T V"]) -> Float[Tensor, "T V"]:
        require_finite(logits, "draft", range(len(logits)))
        return logits


class _Ranks:
    """The ranks of the text's tokens below consecutive positions, `rest` being what follows the first."""

    def __init__(self, rest: Sequence[int], count: int, width: int, levels: int) -> None:
        self.rest = rest
        self.found = np.full((count, levels), width)

    def token(self, position: int, level: int) -> int | None:
        """The text's token so many levels below a position's root; None after its end."""
        at = position + level
        return self.rest[at] if at < len(self.rest) else None

    def note(self, position: int, level: int, children: Sequence[int]) -> None:
        """The children of the text's node at a level."""
        token = self.token(position, level)
        if token in children:
            self.found[position, level] = children.index(token)


def _grown(
    forest: _Forest, ranks: _Ranks, *, width: int, levels: int, best: int, own: bool
) -> Drafts:
    """Grow the drafts of all positions best first, level by level.

    `own`: whether rows along the text are those of drafted tokens, which read the head's own states.
    """
    positions = range(len(forest.roots))
    growing = [_Growing(best) for _ in positions]
    chosen, probs = _children(forest.roots, width, forest.ids)
    for position in positions:
        ranks.note(position, 0, chosen[position])
        growing[position].add(position, -1, 0, 1.0, chosen[position], probs[position])
    along = {position: position for position in positions} if own else {}  # the text's last node
    path_logits = []
    for level in range(1, levels):
        along = {p: node for p, node in along.items() if ranks.token(p, level) is not None}
        path = [(node, ranks.rest[p + level - 1]) for p, node in along.items()]
        wanted = [(p, *place) for p in positions for place in growing[p].promising()]
        if not path and not wanted:
            break
        first, logits = forest.below(
            [node for node, _ in path] + [growing[p].nodes[row] for p, row, _ in wanted],
            [token for _, token in path]
            + [growing[p].tokens[row][rank] for p, row, rank in wanted],
        )
        chosen, probs = _children(logits, width, forest.ids)
        if path:
            path_logits.append(logits[: len(path)].clone())  # without those of the whole level
        for i, position in enumerate(along):
            ranks.note(position, level, chosen[i])
            along[position] = first + i
        for i, (position, row, rank) in enumerate(wanted, len(path)):
            value = growing[position].values[row][rank]
            growing[position].add(first + i, row, rank, value, chosen[i], probs[i])
    rows = [(each.parents, each.ranks, np.stack(each.probs)) for each in growing]
    return Drafts(ranks.found, rows, forest.roots, path_logits, forest.ids)


class _Growing:
    """The draft of one position: for each row, its node and what stands below it."""

    def __init__(self, best: int) -> None:
        self._best, self._pool, self._known = best, np.empty(0), 0
        self.nodes: list[int] = []
        self.parents: list[int] = []
        self.ranks: list[int] = []
        self.tokens: list[list[int]] = []
        self.probs: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def add(
        self, node: int, parent: int, rank: int, value: float, tokens: list[int], probs: np.ndarray
    ) -> None:
        """The row of a node of the forest, which is worth `value`."""
        self.nodes.append(node)
        self.parents.append(parent)
        self.ranks.append(rank)
        self.tokens.append(tokens)
        self.probs.append(probs)
        self.values.append(value * probs)

    def promising(self) -> list[tuple[int, int]]:
        """Rows and ranks of the newest level's nodes that are worth more than the least that is kept."""
        new = self.values[self._known :]
        if not new:
            return []
        first, self._known = self._known, len(self.values)
        self._pool = np.concatenate([self._pool, *new])
        least = least_of_best(self._pool, self._best)
        rows, ranks = np.nonzero(np.stack(new) > least)
        return [*zip((rows + first).tolist(), ranks.tolist(), strict=True)]


def _children(
    logits: Float[Tensor, "R v"], width: int, ids: Int[Tensor, " v"] | None = None
) -> tuple[list[list[int]], Float[np.ndarray, "R width"]]:
    """The best children of each row and their probabilities; `ids` as in `Drafts`."""
    drafted = top_k(logits, width)
    probs = RANKING(logits).gather(1, drafted).double().clamp(0, 1)
    if ids is not None:
        drafted = ids[drafted]
    return drafted.tolist(), probs.cpu().numpy()


def _by_depth(
    drafter: MarginalDrafter, text: KnownText, count: int, width: int, depth: int
) -> Iterator[Drafts]:
    """The drafts of a head with one row for each depth, whose rows are all known."""
    start = 0
    parents, ranks_of_rows = [*range(-1, depth - 1)], [0, *[-1] * (depth - 1)]
    for logits in _rows_by_depth(drafter, text, count, depth):
        require_finite(logits.flatten(0, 1), "draft", range(len(logits) * depth))
        chosen, probs = _children(logits.flatten(0, 1), width)
        probs = probs.reshape(-1, depth, width)
        ranks = _Ranks(text.tokens[start:].tolist(), len(logits), width, depth)
        for position in range(len(logits)):
            for level in range(depth):
                ranks.note(position, level, chosen[position * depth + level])
        rows = [(parents, ranks_of_rows, probs[position]) for position in range(len(logits))]
        yield Drafts(ranks.found, rows, logits[:, 0], logits[:, 1:].unbind(1))
        start += len(logits)


def _rows_by_depth(
    drafter: MarginalDrafter, text: KnownText, count: int, depth: int
) -> Iterator[Float[Tensor, "n D V"]]:
    """The logits at the first positions of a text, some positions at a time."""
    features, last = _some(text.features), len(text.prompt) - 1
    if isinstance(drafter, Medusa):  # its heads read one state each
        heads: Any = drafter.given
        for states in features[last - 1 : last - 1 + count, 0].split(POSITIONS_PER_PASS):
            with torch.inference_mode():
                rows = [spread(head(states), heads.vocab_size) for head in heads.heads[:depth]]
            yield torch.stack(rows, dim=1)
        return
    drafter.prefill(text.prompt, features[:last])
    root = int(text.prompt[-1])
    for start in range(0, count, POSITIONS_PER_PASS):
        found = []
        for at in range(start, min(start + POSITIONS_PER_PASS, count)):
            rows = drafter.rows_after((), depth)
            assert rows is not None, "something is known after a prompt of two tokens"
            found.append(rows)
            token = int(text.tokens[at])
            bare = TokenTree.of(
                TreeShape.chain(0), [root], None, Law.DETERMINISTIC, text.tokens.device
            )
            scores = Scores(torch.empty(1, 0), features[last + at : last + at + 1])
            drafter.commit(Step(bare, Verdict((0,), token), scores, (token,)))
            root = token
        yield torch.stack(found)


def _some(features: Float[Tensor, "T F H"] | None) -> Float[Tensor, "T F H"]:
    assert features is not None, "heads read the target's features"
    return features
