"""Drafting with one row for each depth, known before the tree is built.

Medusa's heads and block drafters predict the next positions of a text at once: whatever tokens stand at
depth 1, the row of depth 2 is the same. So a tree is drafted by a single call, and a row at depth d is that
of *every* node at depth d. Children may still be drawn by any law: each child is tested with the row that
it was drawn from, which is all that losslessness needs. Only the chance of acceptance suffers, because a
row cannot depend on the sibling that was accepted above it.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.ranks_next import from_children
from treespec.draft.trained.contract import Contract
from treespec.draft.trained.trained_drafter import TrainedDrafter
from treespec.errors import InvalidTree
from treespec.protocols import Coins, Growth, Observer
from treespec.sampling.distributions import Sampling, wide
from treespec.sampling.processing.processed_model import ProcessedModel
from treespec.sampling.processing.rows import FORBIDDEN
from treespec.step import Scores, Step
from treespec.tree import Law, TokenTree, TreeShape

_ROOT = TreeShape.chain(0)


@runtime_checkable
class MarginalHead(Protocol):
    """What a marginal drafter needs to know of its head."""

    contract: Contract
    """The conventions by which it is run."""
    depth: int
    """Number of positions after the root that it predicts."""
    vocab_size: int
    """Length of its rows: the target's vocabulary."""
    max_length: int
    """Number of positions of its context."""


class RowsByDepth:
    """A `TreeModel` whose row after a node depends on the depth of the node alone. It runs nothing.

    Args:
        vocab_size: length of a row.
        max_length: number of positions up to which there are rows.
    """

    length = 0

    def __init__(self, vocab_size: int, max_length: int) -> None:
        self.vocab_size, self.max_length = vocab_size, max_length
        self.rows: Tensor | None = None
        """By depth, from the root on; None before the first draft of a text."""

    def fresh(self) -> "RowsByDepth":
        """Another one of the same sizes."""
        return RowsByDepth(self.vocab_size, self.max_length)

    def show(self, rows: Float[Tensor, "D V"] | None) -> None:
        """From now on, return these rows."""
        self.rows = rows

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the rows of the last text."""
        self.rows = None

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        """The rows after nodes first .. first + T - 1.

        Raises:
            InvalidTree: if a node is deeper than there are rows.
        """
        assert self.rows is not None, "the rows are shown first"
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        wanted = depths[first:]
        if max(wanted) >= len(self.rows):
            raise InvalidTree(
                f"the growth asks for children of a node at depth {max(wanted)}, but there are rows for "
                f"{len(self.rows)} depths, and the growth states that its trees are no deeper"
            )
        if wanted.count(wanted[0]) == len(wanted):
            return Scores(self.rows[wanted[0]].expand(len(wanted), -1))
        return Scores(self.rows[wanted])

    def keep(self, nodes: Sequence[int]) -> None:
        """Nothing is cached."""


class MarginalDrafter(TrainedDrafter):
    """Drafts trees from one row for each depth: any shape, any growth, any law.

    Growths over marginals (`MarginalGrowth`, as `ddtree`) get the rows themselves, the others draw or
    choose the children of a node from the row of its depth. Processors change a row along the path to each
    node, as they do for the target.

    Below uncommitted tokens (`propose_below`, in a cascade) the rows of the next depths are used; where
    they do not reach to the depth of a tree, the root alone is proposed. A merge may request single nodes.

    Args:
        head: predicts the next positions.
        growth: where the tree grows; see `ModelDrafter`.
        law: how children are chosen; see `ModelDrafter`.
        sampling: the target's sampling settings.
        observer: see `ModelDrafter`.

    Raises:
        InvalidArgument: if this is no such head.
        InvalidTree: see `ModelDrafter`; or if the trees are deeper than the head predicts.
    """

    HEAD_HAS = "depth"

    def __init__(
        self,
        head: MarginalHead,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(head, growth, law, sampling, observer)
        self.depth = head.depth
        if self.max_depth > self.depth:
            raise InvalidTree(
                f"the trees are {self.max_depth} levels deep below the root, but the head predicts "
                f"{self.depth} positions after it: give a tree of depth {self.depth} at most"
            )
        self._tree: TokenTree | None = None
        self._above = 0
        """Uncommitted tokens above the root of the latest tree."""
        self._current = False
        """Whether the rows that the model returns are those after the root."""

    def model_of(self, head: MarginalHead) -> RowsByDepth:
        """Rows by depth, which the head fills at each draft."""
        return RowsByDepth(head.vocab_size, head.max_length)

    @abstractmethod
    def begin(self, features: Float[Tensor, "P F H"]) -> None:
        """Start over on a text with the features of all its tokens but the last."""

    @abstractmethod
    def follow(self, features: Float[Tensor, "E F H"]) -> None:
        """Move on by the features of a step's tokens but the bonus."""

    @abstractmethod
    def rows_after(self, path: Sequence[int], count: int) -> Float[Tensor, "D V"] | None:
        """Logits of the positions after the root, at most `count` of them; None if nothing is known yet.

        Args:
            path: drafted tokens after the root. Only rows from the last of them on are used: a head that
                can depend on these tokens may.
            count: number of rows that are used at most, counted from the root.
        """

    def prefill(
        self, tokens: Int[Tensor, "T"], features: Float[Tensor, "P F H"] | None = None
    ) -> None:
        """Start over on a prompt, with the features of all its tokens but the last, the first root.

        Raises:
            InvalidPrompt, EmptyPrompt: if the prompt is not a row of token ids, or is empty.
            InvalidArgument: without features, or with those of another number of tokens or states.
        """
        own = self.features_of(tokens, features)
        super().prefill(tokens)
        self._tree, self._current = None, False
        self.begin(own)

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree from the root; the root alone if nothing is known yet.

        Raises:
            NonFiniteLogits, InvalidTree: see `ModelDrafter.propose`.
        """
        return self._drafted((), coins)

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """As `propose`, after these uncommitted tokens; see the class."""
        with self._below(tokens):
            tree = self._drafted(tokens, coins)
        self._current = False
        return tree

    def draw_into(
        self,
        parents: Sequence[int],
        tokens: list[int],
        wanted: Mapping[int, Sequence[int]],
        avoided: Mapping[int, Collection[int]],
        coins: Coins,
    ) -> dict[int, Float[Tensor, "V"]]:
        """Draw some nodes of a tree that several sources share; see `ModelDrafter.draw_into`.

        A head that knows nothing yet draws from uniform rows.
        """
        if not self._current:
            self._show(())
            if self.model.rows is None:
                self.model.show(torch.zeros(self.depth, self.model.vocab_size, device=self._device))
        return super().draw_into(parents, tokens, wanted, avoided, coins)

    def commit(self, step: Step) -> None:
        """Read the features of the accepted tokens."""
        if isinstance(self.model, ProcessedModel):
            path = [step.tree.token_ids[node] for node in step.verdict.path]
            self.model.follow([*path, *step.further])
        self._root, self._rows, self._current = step.verdict.bonus, {}, False
        self.follow(self.read(step))

    def best_next(self) -> list[int | None]:
        """For each node of the latest tree, the best token of its row; None beyond the last row.

        Nodes without children have a row too, but none under processors, which would have to change it
        along the path. Valid until the next tree is drafted.
        """
        tree, rows = self._tree, self.model.rows
        if tree is None:
            return []
        if rows is None or isinstance(self.model, ProcessedModel):
            return [from_children(tree, node) for node in range(tree.shape.size)]
        best = [*rows[self._above :].argmax(-1).tolist(), *[None] * tree.shape.size]
        return [
            from_children(tree, node) if tree.shape.children[node] else best[depth]
            for node, depth in enumerate(tree.shape.depths)
        ]

    def _show(self, path: Sequence[int]) -> bool:
        """Let the model return the rows of the current text; whether they reach as deep as the trees."""
        count = min(len(path) + self.max_depth + 1, self.depth)
        rows = self.rows_after(path, count) if len(path) < self.depth else None
        self.model.show(rows)
        self._current = True
        return rows is not None and len(path) + self.max_depth <= len(rows)

    def _drafted(self, path: Sequence[int], coins: Coins) -> TokenTree:
        if self._show(path):
            tree = super().propose(coins)
        else:
            self._rows = {}
            tree = TokenTree.of(_ROOT, [self._root], None, Law.DETERMINISTIC, self._device)
        self._tree, self._above = tree, len(path)
        return tree


def spread(
    logits: Float[Tensor, "D v"], vocab_size: int, kept: Int[Tensor, " v"] | None = None
) -> Float[Tensor, "D V"]:
    """Rows over the target's vocabulary, in which tokens that a head has no row for have probability 0.

    After softmax these are the head's own rows: renormalised over what is kept, they are also what drawn
    children are tested with.

    Args:
        logits: of the head.
        vocab_size: V. Further logits, of padding, are cut.
        kept: the target's id of each of the v tokens; None for 0 .. v - 1.
    """
    if kept is None and logits.shape[-1] >= vocab_size:
        return logits[:, :vocab_size]
    logits = wide(logits)  # half precision cannot hold so small a logit
    rows = logits.new_full((len(logits), vocab_size), FORBIDDEN)
    if kept is None:
        rows[:, : logits.shape[-1]] = logits
    else:
        rows[:, kept] = logits
    return rows
