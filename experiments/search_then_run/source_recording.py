"""Recording a trace of a text source: what it drafts at every position."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from treespec.distributions import Sampling
from treespec.draft import MatchingSource
from treespec.draft.text_source import Draft, proposed
from treespec.experiments.search_then_run.recording import (
    POSITIONS_BEYOND,
    Position,
    PositionRecorder,
    trace_of,
)
from treespec.protocols import Coins, TreeModel
from treespec.search.rates.text_drafts import TextDrafts
from treespec.search.rates.trace import Trace
from treespec.stopping import Stop
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import Rule

__all__ = ["SourceRecorder", "record_source"]


class SourceRecorder(PositionRecorder):
    """Asks a text source what it drafts at each position.

    Args:
        target: the target's weights.
        source: whose limits are the highest that can be replayed.
        sampling: of the target.
        rule: how children are accepted.

    Raises:
        InvalidTrace, RefusedTree: see `PositionRecorder`.
    """

    def __init__(
        self, target: TreeModel, source: MatchingSource, *, sampling: Sampling, rule: Rule
    ) -> None:
        width = source.limits.branching
        super().__init__(target, sampling=sampling, law=Law.DETERMINISTIC, rule=rule, width=width)
        self._source, self._unread = source, False
        self._drafts: list[list[Draft]] = []

    @property
    def drafts(self) -> TextDrafts:
        """What was drafted at all positions so far."""
        limits, of_position = self._source.limits, self._drafts
        drafts = [draft for some in of_position for draft in some]
        return TextDrafts(
            drafts=np.cumsum([0, *map(len, of_position)]),
            nodes=np.cumsum([0, *(len(draft.continuations.tokens) for draft in drafts)]),
            seen=_row(draft.seen for draft in drafts),
            most=_row(draft.most for draft in drafts),
            parents=_row(parent for draft in drafts for parent in draft.continuations.parents[1:]),
            tokens=_row(token for draft in drafts for token in draft.continuations.tokens),
            counts=_row(count for draft in drafts for count in draft.continuations.counts),
            limits=_row([limits.depth, limits.drafted + 1, limits.branching]),
        )

    def _prefill(self, prompt: Sequence[int]) -> None:
        super()._prefill(prompt)
        self._source.prefill(torch.tensor(prompt))
        self._unread = False  # the source has read the first root

    def _pass(self, roots: Sequence[int], coins: Coins) -> Iterator[Position]:
        rows = self.sampling(self._run(self._target, "target", roots))
        for root, row in zip(roots, rows, strict=True):
            if self._unread:
                self._source.read([root])
            self._unread = True
            drafts = self._source.drafts()
            self._drafts.append(drafts)
            tree = proposed(drafts)
            first = zip(tree.parents[1:], tree.tokens, strict=True)
            children = [token for parent, token in first if parent == 0]
            shape = TreeShape((-1, *(0 for _ in children)))
            level = TokenTree(shape, torch.tensor([root, *children]), None, Law.DETERMINISTIC)
            rank, token = self._decided(level, row, coins)
            exact = self._acceptance(row, None, children) if self._acceptance else []
            none = (0.0,) * self.width  # how probable they are, the drafts say once all are there
            yield Position(rank, token, none, (*exact, *none[len(children) :]))


def _probs(drafts: TextDrafts) -> Float[np.ndarray, "T width"]:
    """How probable the children of the root are at every position, within the limits recorded."""
    probs = np.zeros((drafts.positions, drafts.budget.branching))
    first = np.flatnonzero(drafts.drafted(drafts.budget) & (drafts.above < 0))
    of = drafts.draft_of[first]
    probs[drafts.position_of[of], drafts.ranks[first]] = drafts.counts[first] / drafts.seen[of]
    return probs


def _row(numbers: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(numbers), dtype=np.int64)


def record_source(
    target: TreeModel,
    source: MatchingSource,
    prompts_ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    rule: Rule,
    max_new_tokens: int,
    stop: Stop = lambda ids: False,
    seed: int = 0,
    follow: Sequence[Sequence[int]] | None = None,
    beyond: int = POSITIONS_BEYOND,
    files: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Record what a text source drafts at every position, and what is accepted of it.

    What it drafts is a function of the text, so that the record serves every budget within the source's
    limits (`treespec.search.rates.budget_replay`).

    Args:
        target: the target's weights.
        source: with limits as high as any that will be asked for.
        prompts_ids: token ids of the prompts.
        sampling: of the target.
        rule: greedy, naive or onehot.
        max_new_tokens: tokens of each text.
        stop: see `treespec.experiments.search_then_run.recording.record`, as all that follow.
        seed: of the coins.
        follow: token ids after each prompt, instead of decoding.
        beyond: positions recorded after the end of each text.
        files: a number for the file that each prompt is an excerpt of.
        progress: told as each text begins.

    Raises:
        InvalidTrace, RefusedTree, EmptyPrompt, InvalidPrompt, InvalidBudget, ContextOverflow,
        NonFiniteLogits: see `record`.
    """
    recorder = SourceRecorder(target, source, sampling=sampling, rule=rule)
    context = min(target.max_length, source.max_length)
    made = trace_of(
        recorder, prompts_ids, vocab_size=target.vocab_size, context=context, reach=beyond,
        max_new_tokens=max_new_tokens, stop=stop, seed=seed, follow=follow, beyond=beyond, files=files,
        progress=progress,
    )  # fmt: skip
    drafts = recorder.drafts
    return replace(made, text_drafts=drafts, probs=_probs(drafts))
