"""Cascades: a model verifies the drafts of another source, and the result is the model's own draft."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from treespec.checks import integer
from treespec.draft.model import ModelDrafter, Passes
from treespec.errors import InvalidArgument
from treespec.features import Features, prefill, reads_of
from treespec.models.tabular import TabularModel
from treespec.protocols import Coins, Drafter, ReadsTarget, Target, TreeModel, Verifier
from treespec.sampling.distributions import Sampling
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape


@runtime_checkable
class AcceptanceRule(Verifier, Protocol):
    """A verifier that states what it covers."""

    laws: Collection[Law]
    """The laws of children that it covers."""
    lossless: bool
    """Whether emitted tokens follow the distribution of the verifying model."""
    one_hot: bool
    """Whether it requires temperature 0."""


@runtime_checkable
class DraftsBelow(Drafter, Protocol):
    """A drafter that can draft after uncommitted tokens."""

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """Draft a tree whose root is the last of these tokens, which follow the current root.

        The drafter's own state is unchanged afterwards.
        """


class Cascade(ModelDrafter):
    """Drafts a chain of a model's own tokens, decoded speculatively with drafts of another source.

    The vertical cascade of CS Drafting (arXiv:2312.11462); TriForce (arXiv:2404.11912) has such levels too.
    The source below the model drafts a tree and an acceptance rule decides on it by the model's rows, again
    and again until the chain is `depth` tokens long. Accepted tokens follow the *model's* distribution, not
    that of the source, so the rows stated in the tree are the model's. A cascade may be the source of
    another cascade.

    Every level follows the text that the target accepts and forgets what it drafted beyond. The model runs
    one pass for each tree drafted for it; rows of accepted tokens are kept.

    Args:
        model: drafts for the target; its own cache is not touched.
        drafter: drafts for the model. It must be able to draft after uncommitted tokens (`propose_below`):
            a `ModelDrafter`, `PromptLookup`, `Documents`, `SuffixTree`, `SuffixAutomaton`, `Retrieval`,
            `TokenRecycling` or another cascade.
        rule: decides which drafts the model accepts. Lossy rules are allowed at temperature 0 only: above
            it, the distribution of the result is unknown.
        depth: number of draft tokens of a chain, at least 1 and at most the model's context.
        sampling: the target's sampling settings.
        law: IID or WITHOUT_REPLACEMENT (equivalent on a chain), or DETERMINISTIC for the model's best
            tokens.

    Raises:
        InvalidArgument: if `drafter` cannot draft after uncommitted tokens, the rule is lossy above
            temperature 0 or does not cover the children that `drafter` drafts, or the cascade contains
            itself: a level is a drafter, or uses the weights of a model, that also stands above it.
    """

    draws_where_told = False

    def __init__(
        self,
        model: TreeModel,
        drafter: DraftsBelow,
        rule: AcceptanceRule,
        depth: int,
        sampling: Sampling,
        *,
        law: Law = Law.IID,
    ) -> None:
        depth = integer("depth", depth, least=1, most=model.max_length)
        super().__init__(model, TreeShape.chain(depth), law, sampling)
        if self.law.together:
            raise InvalidArgument(
                f"law = {self.law}, but a cascade drafts chains: iid or deterministic"
            )
        # The model's logits are processed when they are run.
        self._inner_sampling = (
            Sampling(0.0) if self.law is Law.DETERMINISTIC else sampling.without_processors
        )
        if not isinstance(drafter, DraftsBelow):
            raise InvalidArgument(
                f"{type(drafter).__name__} cannot draft after uncommitted tokens: the source of a cascade "
                "must be a ModelDrafter, PromptLookup, Documents, SuffixTree, SuffixAutomaton, Retrieval, "
                "TokenRecycling or Cascade"
            )
        _require_rule(rule, drafter, self._inner_sampling)
        _require_distinct_models(model, drafter)
        self.drafter, self.rule = drafter, rule
        self._levels: list[int] = []
        self.origins: tuple[tuple[str, ...], ...] = ()
        """For each node of the last drafted tree, the level that its token is from: `level 1` for the
        model's own tokens, `level 2` for those drafted by the source below (or, if that is a cascade, by
        its model), and so on."""

    @property
    def max_length(self) -> int:
        """Number of positions up to which all levels can draft; lower levels draft beyond the chain."""
        return min(self.model.max_length, self.drafter.max_length) - self.drafter.max_depth

    @property
    def reads(self) -> Features:
        """What the lower levels read of the target."""
        return reads_of(self.drafter)

    def bind_target(self, target: Target) -> None:
        """Pass the target to the lower levels that can read it."""
        if isinstance(self.drafter, ReadsTarget):
            self.drafter.bind_target(target)

    def prefill(
        self, tokens: Int[Tensor, "T"], features: Float[Tensor, "P F H"] | None = None
    ) -> None:
        """Start over on a prompt, on all levels, with the features that lower levels read."""
        super().prefill(tokens)
        prefill(self.drafter, tokens, features, self.reads)

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a chain of the model's next tokens.

        Raises:
            NonFiniteLogits: if a model returns NaN or infinite logits.
            RefusedTree: if the rule does not cover a tree that was drafted for the model.
        """
        return self._chain((), coins)

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """As `propose`, after these uncommitted tokens, which follow the root; no state is changed."""
        with self._below(tokens):
            return self._chain(tokens, coins)

    def commit(self, step: Step) -> None:
        """Keep the rows of accepted tokens, on all levels."""
        super().commit(step)
        self.drafter.commit(step)

    def _chain(self, ahead: Sequence[int], coins: Coins) -> TokenTree:
        passes = Passes(self.model, self._pending)
        # Parents and tokens of all nodes that the model runs for this chain, and the chain's nodes.
        parents, tokens, chain = [-1], [self._root], [0]
        rows: list[Tensor] = []
        levels = [0]  # of the chain's nodes; the root is committed
        while len(chain) <= self.max_depth:
            tree = self.drafter.propose_below(
                [*ahead, *(tokens[node] for node in chain[1:])], coins
            )
            nodes = [chain[-1], *range(len(tokens), len(tokens) + tree.shape.size - 1)]
            parents += [nodes[parent] for parent in tree.shape.parents[1:]]
            tokens += tree.token_ids[1:]
            logits = passes.run(nodes, [tokens[node] for node in nodes], parents, self._device)
            probs = self._inner_sampling.rows(logits, "draft")
            verdict = self.rule(tree, probs, coins)
            rows += [probs[node] for node in verdict.path]
            chain += [nodes[node] for node in verdict.path[1:]]
            levels += [*self._levels_below(verdict.path[1:]), 1]
            parents.append(chain[-1])
            tokens.append(verdict.bonus)
            chain.append(len(tokens) - 1)
        del chain[self.max_depth + 1 :], rows[self.max_depth :]
        self._levels = levels[: len(chain)]
        self.origins = ((), *((f"level {level}",) for level in self._levels[1:]))
        self._rows = {i: passes.rows[node] for i, node in enumerate(chain) if node in passes.rows}
        ids, shape = [tokens[node] for node in chain], TreeShape.chain(self.max_depth)
        draft_probs = None if self.law is Law.DETERMINISTIC else torch.stack(rows)
        return self._vouched(TokenTree.of(shape, ids, draft_probs, self.law, self._device))

    def _levels_below(self, nodes: Sequence[int]) -> list[int]:
        """The levels that drafted these nodes of the last tree of the source below."""
        if isinstance(self.drafter, Cascade):
            return [self.drafter._levels[node] + 1 for node in nodes]
        return [2] * len(nodes)


def _require_rule(rule: AcceptanceRule, drafter: Any, sampling: Sampling) -> None:
    """Refuse rules under which drafts do not follow the model's distribution, or that cannot decide."""
    if not rule.lossless and not sampling.greedy:
        raise InvalidArgument(
            f"rule '{rule}' is lossy: above temperature 0 the tokens it accepts do not follow the model's "
            "distribution, and no rule could verify them; use a lossless rule"
        )
    if rule.one_hot and not sampling.greedy:
        raise InvalidArgument(f"rule '{rule}' needs temperature 0: use another for the cascade")
    law = getattr(drafter, "law", Law.DETERMINISTIC)
    if law not in rule.laws:
        covered = ", ".join(sorted(map(str, rule.laws)))
        raise InvalidArgument(
            f"rule '{rule}' of the cascade is made for children of law {covered}, but its source "
            f"drafts children of law {law}"
        )


def parts_of(drafter: Any) -> list[Any]:
    """A source and all sources inside it: those that draft for a cascade, and those of a merge."""
    parts: list[Any] = []
    waiting = [drafter]
    while waiting:
        part = waiting.pop()
        if any(part is known for known in parts):
            raise InvalidArgument(
                f"the draft source contains itself, or has a part twice: one {type(part).__name__} is used "
                "at two places, but can follow a text only once: make two"
            )
        parts.append(part)
        sources = getattr(part, "sources", None)
        inner = [
            getattr(part, "drafter", None),
            *(sources.values() if isinstance(sources, Mapping) else ()),
        ]
        waiting += [source for source in inner if isinstance(source, Drafter)]
    return parts


def _require_distinct_models(model: TreeModel, drafter: Any) -> None:
    """Refuse a cascade that uses one model on two levels."""
    models = [_weights(model)]
    for part in parts_of(drafter):
        if (given := getattr(part, "given", None)) is None:
            continue
        if any(_weights(given) is above for above in models):
            raise InvalidArgument(
                "the cascade contains itself: one model is used on two of its levels; a lower level must "
                "be cheaper than the level it drafts for"
            )
        models.append(_weights(given))


def _weights(model: Any) -> Any:
    """The object shared by all wrappers of one model, each of which has its own cache."""
    if isinstance(model, TabularModel):
        return model.row
    inner = getattr(model, "model", None)
    return inner if isinstance(inner, nn.Module) else model
