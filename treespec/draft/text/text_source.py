"""Base classes of the sources that draft without a model: deterministic children, found in token ids."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.draft.text.best_first import Continuations, Limits, Match, all_within, best_first
from treespec.errors import InvalidTree
from treespec.protocols import Coins
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape


class TokenSource(ABC):
    """A source that reads token ids and drafts from what it has read, without a model and without coins.

    The children are DETERMINISTIC, a function of the tokens read: above temperature 0 only rules for this
    law preserve the target's distribution. What was read is forgotten when the next prompt begins, so that
    a text depends on its prompt alone.
    """

    max_length = sys.maxsize
    max_depth: int
    reads_any_tree = True
    """Whether `commit` accepts any verified tree; otherwise it needs the source's own tree, complete."""
    _proposed: TokenTree | None = None

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the earlier text and read this prompt; its last token is the first root."""
        require_tokens(tokens)
        self._device, self._proposed = tokens.device, None
        self._restart()
        self._take(tokens.tolist())

    def propose(self, coins: Coins) -> TokenTree:
        """Draft continuations of the root; no coin is used."""
        parents, tokens = self._continuations()
        self._proposed = self._tree(parents, [self._root, *tokens])
        return self._proposed

    def commit(self, step: Step) -> None:
        """Read the accepted tokens and the bonus."""
        self._take(step.emitted_ids)

    def _require_own(self, step: Step) -> None:
        """Refuse a step of another tree, for sources that read its rows by the indices of their nodes."""
        proposal, tree = self._proposed, step.tree
        if proposal is None or proposal.shape != tree.shape or proposal.token_ids != tree.token_ids:
            raise InvalidTree(
                f"this step is of a tree that {type(self).__name__} did not propose last: commit the step "
                "of the tree that propose() returned"
            )

    def _tree(self, parents: Sequence[int], ids: Sequence[int]) -> TokenTree:
        shape = TreeShape(tuple(parents))
        return TokenTree.of(shape, ids, None, Law.DETERMINISTIC, self._device)

    def _take(self, tokens: Sequence[int]) -> None:
        self._root = tokens[-1]
        self._read(tokens)

    @abstractmethod
    def _restart(self) -> None:
        """Forget everything that was read."""

    @abstractmethod
    def _read(self, tokens: Sequence[int]) -> None:
        """Append these tokens to the text."""

    @abstractmethod
    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        """The parents of all nodes, starting with -1 for the root, and the tokens of all but the root."""


class AheadSource(TokenSource):
    """A source that can draft after uncommitted tokens, of which it remembers nothing."""

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """Draft a tree whose root is the last of these uncommitted tokens, which follow the current root.

        `tokens`: in the order of the text, read for this tree only; if empty, the tree is that of
        `propose`.
        """
        parents, drafted = self._after(tokens)
        root = tokens[-1] if tokens else self._root
        return self._tree(parents, [root, *drafted])

    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._after(())

    @abstractmethod
    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """As `_continuations`, with these tokens appended to the text."""


class Draft(NamedTuple):
    """A draft that a source may propose at a position of a text, its nodes in the order of choice.

    Args:
        continuations: the nodes that the source's limits or any lower limits allow.
        seen: how often the string that they continue was seen.
        most: largest number of draft nodes that the length of this string and the source's limits allow.
    """

    continuations: Continuations
    seen: int
    most: int


def proposed(drafts: Iterable[Draft]) -> Continuations:
    """The nodes that a source proposes within its own limits, given the drafts of one position."""
    best, best_score = Continuations([-1], [], []), 0.0
    for continuations, seen, most in drafts:
        score = sum(continuations.counts[:most]) / seen
        if score > best_score:
            best_score = score
            best = Continuations(
                continuations.parents[: most + 1],
                continuations.tokens[:most],
                continuations.counts[:most],
            )
    return best


class MatchingSource(AheadSource):
    """A text source that continues strings which were seen before.

    Its tree is a function of the text alone, whatever was drafted and verified before. So its trees can be
    recorded at every position of a text, for all limits at once (`drafts`).
    """

    limits: Limits
    """The limits of every tree."""

    def drafts(self) -> list[Draft]:
        """The drafts that it may propose after the text, within its limits and all lower limits.

        A draft under given limits consists of the first nodes that they allow. Of several drafts, the
        source proposes the one with the largest sum of node probabilities (counts divided by `seen`), and
        the first one in case of ties.
        """
        return [
            Draft(all_within(match), match.seen, match.limits.drafted)
            for match in self._matches(())
        ]

    def read(self, tokens: Sequence[int]) -> None:
        """Append these tokens, at least one, to the text, whatever was proposed."""
        self._take(tokens)

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        best, best_score = Continuations([-1], [], []), 0.0
        for match in self._matches(ahead):
            if match.search is not None:
                return match.search()
            if min(match.limits.drafted, match.limits.depth) <= best_score:
                continue  # the probabilities of a level sum to at most one
            continuations = best_first(match.start, match.followers, match.limits, match.order)
            score = sum(continuations.counts) / match.seen
            if score > best_score:
                best, best_score = continuations, score
        return best.parents, best.tokens

    @abstractmethod
    def _matches(self, ahead: Sequence[int]) -> Iterable[Match]:
        """The strings from which the text followed by these tokens may continue, preferred ones first."""
