"""Draft models with logits for some of the target's tokens only, whose rows are spread over all of them.

The other tokens get the lowest finite logit, so that a row's distribution under any sampling setting is
renormalised on the tokens that the draft can write, and children are drawn from the row they are tested
with.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import UnsupportedModel
from treespec.models.shared_tokens import SharedTokens
from treespec.protocols import TreeModel
from treespec.step import Scores


class SomeTokens:
    """A model whose columns of logits are some of the target's tokens (`treespec.protocols.TreeModel`).

    A draft whose vocabulary is trimmed to its most frequent tokens (FR-Spec, arXiv:2502.14856) reads every
    token and computes logits of these only.

    Args:
        inner: the model; its cache is used, not copied.
        tokens: the target's id of each column.
        vocab_size: number of the target's token ids.
    """

    draws_by_kernel = False

    def __init__(self, inner: TreeModel, tokens: Int[Tensor, " S"], vocab_size: int) -> None:
        self.inner, self.tokens, self.vocab_size = inner, tokens, vocab_size

    def __getattr__(self, name: str) -> Any:
        """Whatever else the model has."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def fresh(self) -> "SomeTokens":
        """A model with the same weights and an empty cache of its own."""
        return SomeTokens(self.inner.fresh(), self.tokens, self.vocab_size)

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        """Logits after nodes first .. first + T - 1; see `treespec.protocols.TreeModel.run`."""
        return Scores(self._spread(self.inner.run(tokens, parents, first).logits))

    def _spread(self, logits: Float[Tensor, "T S"]) -> Float[Tensor, "T V"]:
        lowest = torch.finfo(logits.dtype).min
        rows = logits.new_full((len(logits), self.vocab_size), lowest)
        return rows.index_copy_(1, self.tokens.to(logits.device), logits)


class Intersection(SomeTokens):
    """A draft model of another tokenizer, in the target's token ids (TLI, arXiv:2502.05202, Algorithm 4).

    Its rows are renormalised on the tokens that both know. It reads a prompt as its own tokenizer splits
    the text, and each later token as its own ids of that token's text: a token that it does not know
    becomes several rows of its cache. A text longer than its context is continued from the latter half.

    Args:
        inner: the draft model in its own ids; its cache is used, not copied.
        shared: the tokens that both know.
    """

    max_length = sys.maxsize

    def __init__(self, inner: TreeModel, shared: SharedTokens) -> None:
        super().__init__(inner, shared.target_ids, shared.vocab_size)
        self.shared = shared
        self._text: list[int] = []
        self._tree: list[int] = []
        self._parents: list[int] = []
        self._nodes: list[range] = []

    def fresh(self) -> "Intersection":
        """A model with the same weights and an empty cache of its own."""
        return Intersection(self.inner.fresh(), self.shared)

    def of_tokens(self, tokens: Int[Tensor, " S"]) -> SomeTokens:
        """Refused: the tokens of the target are not those that the draft's head has rows of.

        Raises:
            UnsupportedModel: always.
        """
        raise UnsupportedModel(
            "a draft of another tokenizer is not trimmed: it drafts the tokens that both know"
        )

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget all rows and commit those of a text.

        Raises:
            InvalidPrompt: if the text spells out a special token of the draft.
        """
        self._device = tokens.device
        self._text = self.shared.read(tokens.tolist())
        self._restart(self.inner.max_length - self._margin)

    @property
    def _margin(self) -> int:
        """Positions that are left for trees."""
        return min(256, self.inner.max_length // 2)

    def _restart(self, most: int) -> None:
        """Commit the last ids of the text, at most so many."""
        self._text = self._text[max(len(self._text) - most, 0) :]
        self._tree, self._parents, self._nodes = [], [], []
        self.inner.prefill(torch.tensor(self._text, dtype=torch.long, device=self._device))

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        """Logits after nodes first .. first + T - 1; see `treespec.protocols.TreeModel.run`."""
        if not first:
            self._tree, self._parents, self._nodes = [], [], []
            if len(self._text) + self._margin > self.inner.max_length:
                self._restart((self.inner.max_length - self._margin) // 2)
        begin = len(self._tree)
        for node, token in enumerate(tokens.tolist(), start=first):
            above = self._nodes[parents[node]][-1] if parents[node] >= 0 else -1
            start = len(self._tree)
            for piece in self.shared.pieces(token):
                self._parents.append(above)
                above = len(self._tree)
                self._tree.append(piece)
            self._nodes.append(range(start, len(self._tree)))
        new = torch.tensor(self._tree[begin:], dtype=torch.long, device=tokens.device)
        logits = self.inner.run(new, tuple(self._parents), begin).logits
        ends = torch.tensor(
            [rows[-1] - begin for rows in self._nodes[first:]], device=logits.device
        )
        return Scores(self._spread(logits[ends][:, self.shared.draft_ids.to(logits.device)]))

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, a path down from node 0, and forget all other tree rows."""
        rows = [row for node in nodes for row in self._nodes[node]]
        self.inner.keep(rows)
        self._text += [self._tree[row] for row in rows]
        self._tree, self._parents, self._nodes = [], [], []
