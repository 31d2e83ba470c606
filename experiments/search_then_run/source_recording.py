"""Record a trace of a text source: what it drafts at every position."""

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
    """Records what a text source drafts at each position.

    Args:
        target: the target model.
        source: the text source; its limits are the highest that can be replayed.
        sampling: sampling settings of the target.
        rule: how children are accepted.

    Raises:
        InvalidTrace, RefusedTree: see `PositionRecorder`.
    """

    def __init__(
        self, target: TreeModel, source: MatchingSource, *, sampling: Sampling, rule: Rule
    ) -> None:
        super().__init__(
            target,
            sampling=sampling,
            law=Law.DETERMINISTIC,
            rule=rule,
            width=source.limits.branching,
        )
        self._source, self._unread = source, False
        self._drafts: list[list[Draft]] = []

    @property
    def drafts(self) -> TextDrafts:
        """The drafts of all positions so far."""
        limits, of_position = self._source.limits, self._drafts
        drafts = [draft for position in of_position for draft in position]
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
            nodes = zip(tree.parents[1:], tree.tokens, strict=True)
            children = [token for parent, token in nodes if parent == 0]
            shape = TreeShape((-1, *(0 for _ in children)))
            level = TokenTree(shape, torch.tensor([root, *children]), None, Law.DETERMINISTIC)
            rank, token = self._decided(level, row, coins)
            exact = self._acceptance(row, None, children) if self._acceptance else []
            zeros = (
                0.0,
            ) * self.width  # `_probs` computes the probabilities from all drafts at the end
            yield Position(rank, token, zeros, (*exact, *zeros[len(children) :]))


def _probs(drafts: TextDrafts) -> Float[np.ndarray, "T width"]:
    """The probabilities of the root's children at every position, within the recorded limits."""
    probs = np.zeros((drafts.positions, drafts.budget.branching))
    children = np.flatnonzero(drafts.drafted(drafts.budget) & (drafts.above < 0))
    draft = drafts.draft_of[children]
    shares = drafts.counts[children] / drafts.seen[draft]
    probs[drafts.position_of[draft], drafts.ranks[children]] = shares
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
    """Record what a text source drafts at every position, and which of its drafts are accepted.

    The drafts are a function of the text, so the record serves every budget within the source's limits
    (`treespec.search.rates.replay`).

    Args:
        target: the target model.
        source: the text source, with limits as high as any that will be replayed.
        prompts_ids: token ids of the prompts.
        sampling: sampling settings of the target.
        rule: greedy, naive or onehot.
        max_new_tokens: maximum number of tokens of each text.
        stop: see `treespec.experiments.search_then_run.recording.record`, as for all arguments below.
        seed: seed of the coins.
        follow: token ids after each prompt, to follow instead of decoding.
        beyond: positions recorded after the end of each text.
        files: for each prompt, the number of the file it is an excerpt of.
        progress: called with a message as each text begins.

    Raises:
        InvalidTrace, RefusedTree, EmptyPrompt, InvalidPrompt, InvalidBudget, ContextOverflow,
        NonFiniteLogits: see `record`.
    """
    recorder = SourceRecorder(target, source, sampling=sampling, rule=rule)
    context = min(target.max_length, source.max_length)
    trace = trace_of(
        recorder, prompts_ids, vocab_size=target.vocab_size, context=context, reach=beyond,
        max_new_tokens=max_new_tokens, stop=stop, seed=seed, follow=follow, beyond=beyond, files=files,
        progress=progress,
    )  # fmt: skip
    drafts = recorder.drafts
    return replace(trace, text_drafts=drafts, probs=_probs(drafts))
