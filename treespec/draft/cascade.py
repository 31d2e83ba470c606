"""Cascades: the drafts of one source, verified by a model, are the drafts of that model."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from treespec.distributions import Sampling
from treespec.door import able, integer
from treespec.draft.model import ModelDrafter, Passes
from treespec.errors import InvalidArgument
from treespec.models.tabular import TabularModel
from treespec.protocols import Coins, Drafter, ReadsTarget, Target, TreeModel, Verifier
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["AcceptanceRule", "Cascade", "DraftsBelow", "parts_of"]


@runtime_checkable
class AcceptanceRule(Verifier, Protocol):
    """A verifier that says what it covers."""

    laws: Collection[Law]
    """How children may have been drawn."""
    lossless: bool
    """Whether what is emitted follows the law of the model that verifies."""
    one_hot: bool
    """Whether it needs temperature 0."""


@runtime_checkable
class DraftsBelow(Drafter, Protocol):
    """A drafter that can draft after tokens which are not committed."""

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """A tree over the last of these tokens, which follow the root; nothing of it is kept."""
        ...


class Cascade(ModelDrafter):
    """Drafts a chain of a model's own tokens, which another source drafts for the model.

    The vertical cascade of CS Drafting (arXiv:2312.11462); TriForce (arXiv:2404.11912) has such levels too.
    The model decodes speculatively: the source below it drafts a tree, an acceptance rule decides on it by
    the model's rows, until the chain is `depth` tokens long. What was accepted has the *model's* law, not
    that of the source, so that the rows that the tree tells of are the model's. A cascade may be the source
    of another.

    Every level follows the text that the target accepts; what they drafted beyond it is forgotten. The
    model runs one pass for each tree that is drafted for it; its rows are kept where they are accepted.

    Args:
        model: drafts for the target; its own cache is not touched.
        drafter: drafts for the model. It must be able to draft after tokens that are not committed
            (`propose_below`): a `ModelDrafter`, `PromptLookup`, `Documents`, `SuffixTree`,
            `SuffixAutomaton`, `Retrieval`, `TokenRecycling` or another cascade.
        rule: decides which drafts the model accepts. A lossy one only at temperature 0: otherwise what
            comes out has no known law.
        depth: draft tokens of a chain, at least 1.
        sampling: the settings of the target.
        law: IID or WITHOUT_REPLACEMENT (on a chain the same), or DETERMINISTIC for the model's best tokens.

    Raises:
        InvalidArgument: if one of them is no such thing, the rule is lossy above temperature 0 or not made
            for the children that `drafter` drafts, or the cascade ends in itself: a level drafts with the
            weights of a model, or is a drafter, that stands above it.
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
        super().__init__(model, TreeShape.chain(integer("depth", depth, least=1)), law, sampling)
        if self.law.together:
            raise InvalidArgument(
                f"law = {self.law}, but a cascade drafts chains: iid or deterministic"
            )
        self._inner_sampling = Sampling(0.0) if self.law is Law.DETERMINISTIC else sampling
        able("drafter", drafter, "max_depth max_length prefill propose commit", "a draft source")
        if not isinstance(drafter, DraftsBelow):
            raise InvalidArgument(
                f"{type(drafter).__name__} cannot draft after tokens that are not committed: the source of "
                "a cascade is a ModelDrafter, PromptLookup, Documents, SuffixTree, SuffixAutomaton, "
                "Retrieval, TokenRecycling or Cascade"
            )
        able("rule", rule, "laws lossless one_hot", "an acceptance rule, such as verify.onehot")
        _require_rule(rule, drafter, self._inner_sampling)
        _require_end(model, drafter)
        self.drafter, self.rule = drafter, rule
        self._levels: list[int] = []
        self.origins: tuple[tuple[str, ...], ...] = ()
        """Of each node of the tree that was drafted last, the level that its token is from: `level 1` for
        the model's own, `level 2` for what the source below drafted, or its model if that is a cascade,
        and so on."""

    @property
    def max_length(self) -> int:
        """Positions up to which all levels can draft: the lower ones draft beyond the chain."""
        return min(self.model.max_length, self.drafter.max_length) - self.drafter.max_depth

    def bind_target(self, target: Target) -> None:
        """Let the lower levels know the target, if they can read it."""
        if isinstance(self.drafter, ReadsTarget):
            self.drafter.bind_target(target)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Begin anew on all levels.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        super().prefill(tokens)
        self.drafter.prefill(tokens)

    def propose(self, coins: Coins) -> TokenTree:
        """The model's next tokens, as many as the chain has.

        Raises:
            NonFiniteLogits: if a model returns NaN or infinite logits.
            RefusedTree: if the rule does not cover a tree that was drafted for the model.
        """
        return self._drafted((), coins)

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """The same after these tokens, which follow the root; it is forgotten."""
        with self._below(tokens):
            return self._drafted(tokens, coins)

    def commit(self, step: Step) -> None:
        """Keep the rows of what was accepted, on all levels."""
        super().commit(step)
        self.drafter.commit(step)

    def _drafted(self, ahead: Sequence[int], coins: Coins) -> TokenTree:
        passes = Passes(self.model, self._pending)
        # All nodes that the model has run in this chain: parents and tokens; the chain as nodes of them.
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
        drawn = None if self.law is Law.DETERMINISTIC else torch.stack(rows)
        tree = TokenTree.of(shape, ids, drawn, self.law, self._device)
        # Sampling has just made the rows of finite logits.
        return tree.vouched() if type(self.sampling) is Sampling else tree

    def _levels_below(self, nodes: Sequence[int]) -> list[int]:
        """The levels that drafted these nodes of the last tree of the source below."""
        if isinstance(self.drafter, Cascade):
            return [self.drafter._levels[node] + 1 for node in nodes]
        return [2] * len(nodes)


def _require_rule(rule: AcceptanceRule, drafter: Any, sampling: Sampling) -> None:
    """Refuse rules by which the model's drafts would have another law, or none."""
    if not rule.lossless and not sampling.greedy:
        raise InvalidArgument(
            f"rule '{rule}' is lossy: above temperature 0 what it accepts has another law than the "
            "model's, and no rule could verify it; take a lossless rule"
        )
    if rule.one_hot and not sampling.greedy:
        raise InvalidArgument(f"rule '{rule}' needs temperature 0: take another for the cascade")
    law = getattr(drafter, "law", Law.DETERMINISTIC)
    if law not in rule.laws:
        covered = ", ".join(sorted(map(str, rule.laws)))
        raise InvalidArgument(
            f"rule '{rule}' of the cascade is made for children drawn {covered}, but its source drafts "
            f"{law} ones"
        )


def parts_of(drafter: Any) -> list[Any]:
    """A source and all that it is made of: what drafts for a cascade, the sources of a merge.

    Raises:
        InvalidArgument: if one of them appears twice. It would be told of every step twice.
    """
    parts: list[Any] = []
    waiting = [drafter]
    while waiting:
        part = waiting.pop()
        if any(part is known for known in parts):
            raise InvalidArgument(
                f"the draft source ends in itself, or has a part twice: one {type(part).__name__} stands "
                "at two places, but can follow a text only once: make two"
            )
        parts.append(part)
        sources = getattr(part, "sources", None)
        inner = [
            getattr(part, "drafter", None),
            *(sources.values() if isinstance(sources, Mapping) else ()),
        ]
        waiting += [one for one in inner if isinstance(one, Drafter)]
    return parts


def _require_end(model: TreeModel, drafter: Any) -> None:
    """Refuse a cascade one of whose levels stands above itself."""
    models = [_weights(model)]
    for part in parts_of(drafter):
        if (given := getattr(part, "given", None)) is None:
            continue
        if any(_weights(given) is above for above in models):
            raise InvalidArgument(
                "the cascade ends in itself: one model stands at two of its levels; a lower level must be "
                "cheaper than the one that it drafts for"
            )
        models.append(_weights(given))


def _weights(model: Any) -> Any:
    """What wrappers of one model share, each of which has a cache of its own."""
    if isinstance(model, TabularModel):
        return model.row
    inner = getattr(model, "model", None)
    return inner if isinstance(inner, nn.Module) else model
