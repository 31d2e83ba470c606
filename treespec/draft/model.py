"""Drafting with an autoregressive model, level by level, along any growth."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.children import top_k
from treespec.distributions import Sampling, require_finite
from treespec.draft.growth import StaticGrowth
from treespec.errors import InvalidTree
from treespec.protocols import Coins, Growth, TreeModel
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["ModelDrafter"]


class ModelDrafter:
    """Drafts a tree with a smaller model, one pass for each level that gets children.

    The model's cache holds the rows of committed tokens that the model has run. Committed tokens that it
    has not run (an accepted leaf was never run) are *pending*: they open the next pass as a chain above
    the root. Leaves are never run.

    Args:
        model: the weights; its own cache is not touched, each drafter has a fresh one.
        growth: where the tree grows; a `TreeShape` grows as it is.
        law: how children are chosen. IID and WITHOUT_REPLACEMENT draw from the model's distribution under
            `sampling`; DETERMINISTIC takes the k best logits and uses no coin.
        sampling: the settings of the target, applied by the same code.
    """

    def __init__(
        self, model: TreeModel, growth: Growth | TreeShape, law: Law, sampling: Sampling
    ) -> None:
        self.model, self.law, self.sampling = model.fresh(), Law.of(law), sampling
        self.growth = StaticGrowth(growth) if isinstance(growth, TreeShape) else growth
        self._pending: list[int] = []
        self._rows: dict[int, int] = {}

    @property
    def max_depth(self) -> int:
        """Most edges that a proposed tree can have."""
        return self.growth.max_depth

    @property
    def max_length(self) -> int:
        """Positions that the model was made for."""
        return self.model.max_length

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which is the first root."""
        self.model.prefill(tokens[:-1])
        self._device = tokens.device
        self._pending, self._root = [], int(tokens[-1])

    def propose(self, coins: Coins) -> TokenTree:
        """A tree over the root, grown until the growth has nothing to add.

        Raises:
            NonFiniteLogits: if the draft model returns NaN or infinite logits.
            InvalidTree: if the growth gives children to a node a second time.
        """
        parents, tokens, known = [-1], [self._root], _Distributions(self.law, self.sampling)
        passes = _Passes(self.model, self._pending)
        while True:
            shape = TreeShape(tuple(parents))
            probs = partial(known.node_probs, parents, tokens, self._device)
            places = self.growth.next(shape, probs)
            if not places:
                break
            nodes = [node for node, _ in places]
            if not passes.rows.keys().isdisjoint(nodes) or len(set(nodes)) < len(nodes):
                raise InvalidTree(f"the growth gives children to a node twice: {nodes}")
            logits = passes.run(nodes, [tokens[node] for node in nodes], parents, self._device)
            require_finite(logits, "draft", nodes)
            for (node, _), children in zip(
                places, known.choose(places, logits, coins), strict=True
            ):
                parents += [node] * len(children)
                tokens += children
        self._rows = passes.rows
        return TokenTree(
            shape, torch.tensor(tokens, device=self._device), known.stacked(shape), self.law
        )

    def commit(self, step: Step) -> None:
        """Keep the rows that the model ran for committed tokens; the other tokens become pending."""
        tokens = self._pending + [step.tree.token_ids[node] for node in step.verdict.path]
        ran = [self._rows[node] for node in step.verdict.path if node in self._rows]
        opened = list(range(len(self._pending))) if ran else []
        self.model.keep(opened + ran)
        self._pending, self._root = tokens[len(opened) + len(ran) :], step.verdict.bonus
        self._rows = {}


class _Passes:
    """The passes over one tree, in the numbering of the rows that the model runs.

    Rows 0 .. p - 1 are the pending tokens, row p is the root; expanded nodes follow in the order in which
    they are run.
    """

    def __init__(self, model: TreeModel, pending: Sequence[int]) -> None:
        self._model, self._pending = model, pending
        self._parents: tuple[int, ...] = ()
        self.rows: dict[int, int] = {}

    def run(
        self, nodes: Sequence[int], tokens: list[int], parents: Sequence[int], device: torch.device
    ) -> Float[Tensor, "T V"]:
        """Logits after these nodes, whose parents were run before."""
        first = len(self._parents)
        if not first:
            tokens = [*self._pending, *tokens]
            self._parents = tuple(range(-1, len(self._pending) - 1))
        for node in nodes:
            self.rows[node] = len(self._parents)
            above = self.rows[parents[node]] if node else len(self._pending) - 1
            self._parents = (*self._parents, above)
        logits = self._model.run(torch.tensor(tokens, device=device), self._parents, first)
        return logits[-len(nodes) :]


class _Distributions:
    """What the children of each expanded node were drawn from."""

    def __init__(self, law: Law, sampling: Sampling) -> None:
        self._law, self._sampling = law, sampling
        self._probs: dict[int, Tensor] = {}

    def choose(
        self, places: Sequence[tuple[int, int]], logits: Float[Tensor, "T V"], coins: Coins
    ) -> list[list[int]]:
        """The tokens of the new children of each node, in draw order."""
        if self._law is Law.DETERMINISTIC:
            widest = top_k(logits, max(k for _, k in places)).tolist()
            self._probs |= {node: row for (node, _), row in zip(places, logits, strict=True)}
            return [row[:k] for (_, k), row in zip(places, widest, strict=True)]
        probs = self._sampling(logits)
        self._probs |= {node: row for (node, _), row in zip(places, probs, strict=True)}
        drawn: dict[int, list[int]] = {}
        for k in sorted({k for _, k in places}):
            group = [i for i, (_, wanted) in enumerate(places) if wanted == k]
            rows = probs if len(group) == len(places) else probs[group]
            drawn |= zip(group, coins.draw_many(rows, k, self._law).tolist(), strict=True)
        return [drawn[i] for i in range(len(places))]

    def node_probs(
        self, parents: Sequence[int], tokens: Sequence[int], device: torch.device
    ) -> Float[Tensor, "N"]:
        """Draft probability of each node's token given its parent; 1 for the root.

        Deterministic children are scored by the model's own distribution at temperature 1 if the
        settings are greedy: a one-hot row could not rank them.
        """
        if self._law is Law.DETERMINISTIC:
            plain = Sampling() if self._sampling.greedy else self._sampling
            rows = {node: plain(logits) for node, logits in self._probs.items()}
        else:
            rows = self._probs
        probs = [rows[p][t] for p, t in zip(parents[1:], tokens[1:], strict=True)]
        root = torch.ones((), device=device, dtype=probs[0].dtype if probs else None)
        return torch.stack([root, *probs])

    def stacked(self, shape: TreeShape) -> Float[Tensor, "M V"] | None:
        """One row for each node with children, in node order; None if nothing was drawn."""
        if self._law is Law.DETERMINISTIC or not self._probs:
            return None
        return torch.stack([self._probs[node] for node in shape.internal])
