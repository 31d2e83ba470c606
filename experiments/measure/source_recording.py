"""Record a trace of a method's own draft source: of a text source, what it drafts at every position."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from treespec.draft import EarlyExit, LayerSkip, MatchingSource, ModelDrafter
from treespec.draft.text.text_source import Draft, proposed
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.marginal_drafter import MarginalDrafter
from treespec.experiments.config.build import BuiltMethod, Choice
from treespec.experiments.config.combined import CascadeDraft, MergeDraft
from treespec.experiments.config.model_draft import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.sources import JacobiDraft, LookaheadDraft, TokenRecyclingDraft
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.head_recording import TracedHead, require_member
from treespec.experiments.measure.recording import (
    POSITIONS_BEYOND,
    Position,
    PositionRecorder,
    trace_of,
)
from treespec.plugins import Budget, Settings
from treespec.protocols import Coins, Growth, Models, TreeModel
from treespec.sampling.distributions import Sampling
from treespec.search.errors import InvalidTrace
from treespec.search.traces.text_drafts import TextDrafts
from treespec.search.traces.trace import Trace
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import Rule

LIVE_ONLY = "what it drafts depends on the trees it drafted before"

RUN_IT = "run it (`treespec run`)"

REASONS: Mapping[type[Settings], str] = {
    TokenRecyclingDraft: f"{LIVE_ONLY}: {RUN_IT}",
    LookaheadDraft: f"{LIVE_ONLY}: {RUN_IT}",
    JacobiDraft: f"{LIVE_ONLY}: {RUN_IT}",
    CascadeDraft: "its draft tokens are those of its first model, whatever drafts for that model: record a "
    "chain of that model",
    MergeDraft: "how it divides nodes among its sources depends on the budget: record each source alone, "
    f"and {RUN_IT}",
}
"""Why one trace of such a source cannot serve many trees."""

BARE_MODELS = (ModelDrafter, EarlyExit, LayerSkip)
"""Drafters that a trace of their model describes completely. Subclasses may draft differently."""


@dataclass(frozen=True)
class TracedPair:
    """The target, and the model that drafts instead of the pair's draft model."""

    target: TreeModel
    draft: TreeModel


@dataclass(frozen=True)
class TracedSource:
    """The target, and the text source that drafts for it."""

    target: TreeModel
    source: MatchingSource


def require_traceable(method: BuiltMethod, choice: Choice) -> None:
    """Refuse a source, a law or a rule that no trace can serve, before a model is loaded.

    `choice`: the law and rule to record.
    """
    assert isinstance(method.config, TreeMethod)
    reason = REASONS.get(type(method.config.draft))
    if reason is not None:
        raise _untraceable(method, reason)
    if isinstance(method.config.draft, TrainedHead):
        try:
            require_member(choice.law, choice.rule)
        except InvalidTrace as error:
            raise ConfigError(f"--method {method.name!r}: {error}") from None


def traced_source(
    method: BuiltMethod, sampling: str, pair: Models
) -> TracedSource | TracedPair | TracedHead:
    """What to record for a method that does not draft with the pair's draft model.

    This is the target and: the source if it is a text source; the draft if that is a model or a part of
    the target; what makes drafters if it is a trained head.
    """
    drafter = method.drafter(pair, sampling)
    if isinstance(drafter, MatchingSource):
        return TracedSource(pair.target, drafter)
    if isinstance(drafter, HeadDrafter | MarginalDrafter):

        def make(tree: Growth | TreeShape) -> HeadDrafter | MarginalDrafter:
            made = replace(method, tree=tree).drafter(pair, sampling)
            assert isinstance(made, HeadDrafter | MarginalDrafter)
            return made

        return TracedHead(pair.target, make)
    reason = (
        "what it drafts is not known to depend on the text alone (treespec.draft.MatchingSource)"
    )
    if isinstance(drafter, ModelDrafter):
        if type(drafter) not in BARE_MODELS:
            reason = f"a {type(drafter).__name__} may not draft as its model alone does"
        elif not isinstance(method.tree, Budget):
            return TracedPair(pair.target, drafter.given)
    raise _untraceable(method, f"{reason}: {RUN_IT}")


def _untraceable(method: BuiltMethod, reason: str) -> ConfigError:
    assert isinstance(method.config, TreeMethod)
    name = source_of(method.config.draft).name
    return ConfigError(f"--method {method.name!r}: {name} cannot be traced: {reason}")


class SourceRecorder(PositionRecorder):
    """Records what a text source drafts at each position within its limits."""

    def __init__(self, traced: TracedSource, *, sampling: Sampling, rule: Rule) -> None:
        super().__init__(
            traced,
            sampling=sampling,
            law=Law.DETERMINISTIC,
            rule=rule,
            width=traced.source.limits.branching,
        )
        self._unread = False
        self._drafts: list[list[Draft]] = []

    def read_by(self, models: TracedSource) -> None:
        super().read_by(models)
        self._source = models.source

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
            zeros = (0.0,) * self.width  # `_probs` computes the probabilities at the end
            probs = (*exact, *zeros[len(children) :])
            first = children[0] if children else -1
            yield Position(rank, token, zeros, probs, int(row.argmax()), first)


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
    beyond: int = POSITIONS_BEYOND,
    **texts: Any,
) -> Trace:
    """Record what a text source drafts at every position, and which of its drafts are accepted.

    The drafts are a function of the text, so the record serves every budget within the source's limits
    (`search.traces.replay`). The rule is greedy, naive or onehot; `beyond` and `texts` are those of
    `trace_of`.
    """
    recorder = SourceRecorder(TracedSource(target, source), sampling=sampling, rule=rule)
    context = min(target.max_length, source.max_length)
    trace = trace_of(
        recorder, prompts_ids, vocab_size=target.vocab_size, context=context, reach=beyond,
        beyond=beyond, **texts,
    )  # fmt: skip
    drafts = recorder.drafts
    return replace(trace, text_drafts=drafts, probs=_probs(drafts))
