"""What the sources have in common that draft without a model: deterministic children, read from tokens."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from treespec.door import require_tokens
from treespec.draft.best_first import Continuations, Limits, Match, all_within, best_first
from treespec.errors import InvalidTree
from treespec.protocols import Coins
from treespec.step import Step
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["AheadSource", "Draft", "MatchingSource", "TokenSource", "proposed"]


class TokenSource(ABC):
    """A source that reads token ids and drafts from what it has read; no model runs, no coin is used.

    The children are DETERMINISTIC, a function of what was read: above temperature 0 only rules for that
    law keep the target's distribution. What is read is forgotten when the next prompt begins, so that a
    text depends on its prompt alone.
    """

    max_length = sys.maxsize
    max_depth: int
    reads_any_tree = True
    """Whether `commit` reads whatever tree was verified; else it must be the source's own, whole."""
    _proposed: TokenTree | None = None

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Forget the earlier text and read this one; its last token is the first root.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        require_tokens(tokens)
        self._device, self._proposed = tokens.device, None
        self._restart()
        self._take(tokens.tolist())

    def propose(self, coins: Coins) -> TokenTree:
        """The root and what may come next; no coin is used."""
        parents, tokens = self._continuations()
        self._proposed = self._tree(parents, [self._root, *tokens])
        return self._proposed

    def commit(self, step: Step) -> None:
        """Read what was accepted, and the bonus."""
        self._take(step.emitted_ids)

    def _require_own(self, step: Step) -> None:
        """Refuse a step of another tree, for sources that read its rows by their own nodes."""
        proposal, tree = self._proposed, step.tree
        if proposal is None or proposal.shape != tree.shape or proposal.token_ids != tree.token_ids:
            raise InvalidTree(
                f"a step of a tree that {type(self).__name__} did not propose last: commit the step of the "
                "tree that propose() gave"
            )

    def _tree(self, parents: Sequence[int], ids: Sequence[int]) -> TokenTree:
        shape = TreeShape(tuple(parents))
        return TokenTree.of(shape, ids, None, Law.DETERMINISTIC, self._device)

    def _take(self, tokens: Sequence[int]) -> None:
        self._root = tokens[-1]
        self._read(tokens)

    @abstractmethod
    def _restart(self) -> None:
        """Forget what was read."""

    @abstractmethod
    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens."""

    @abstractmethod
    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        """The parents of all nodes, that of the root included, and the tokens of all but the root."""


class AheadSource(TokenSource):
    """One that can draft after tokens which are not committed, and keeps nothing of them."""

    def propose_below(self, tokens: Sequence[int], coins: Coins) -> TokenTree:
        """A tree over the last of these tokens, which follow the root; they are read for it alone.

        Args:
            tokens: in the order of the text; without any the tree is that of `propose`.
            coins: not used.
        """
        parents, drafted = self._after(tokens)
        root = tokens[-1] if tokens else self._root
        return self._tree(parents, [root, *drafted])

    def _continuations(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._after(())

    @abstractmethod
    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """What `_continuations` gives, where these tokens follow the text."""


class Draft(NamedTuple):
    """What a source may draft at a place of a text, in the order in which it is chosen.

    Args:
        continuations: the nodes that the source's limits allow, or lower ones.
        seen: how often the string was seen that they go on from.
        most: nodes of the draft that the length of that string allows, within the source's limits.
    """

    continuations: Continuations
    seen: int
    most: int


def proposed(drafts: Iterable[Draft]) -> Continuations:
    """Of the drafts of one place, the nodes that are proposed within the source's own limits.

    Args:
        drafts: as `MatchingSource.drafts` gives them.
    """
    best, score = Continuations([-1], [], []), 0.0
    for continuations, seen, most in drafts:
        worth = sum(continuations.counts[:most]) / seen
        if worth > score:
            kept = (
                continuations.parents[: most + 1],
                continuations.tokens[:most],
                continuations.counts[:most],
            )
            best, score = Continuations(*kept), worth
    return best


class MatchingSource(AheadSource):
    """A text source: it goes on from strings that were seen before, and does it the same in every run.

    Its tree is a function of the text alone, whatever was drafted and verified before: so it can be
    recorded at every position of a text, for all limits at once (`drafts`).
    """

    limits: Limits
    """Of every tree."""

    def drafts(self) -> list[Draft]:
        """What it may draft after the text, within its limits and all lower ones.

        Of the nodes that limits allow, a draft has the first; of several drafts, the one is proposed whose
        nodes are most probable together (the sum of their counts by what was seen), of equal ones the
        first.
        """
        return [
            Draft(all_within(match), match.seen, match.limits.drafted)
            for match in self._matches(())
        ]

    def read(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens, one at least, whatever was proposed."""
        self._take(tokens)

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        best, score = Continuations([-1], [], []), 0.0
        for match in self._matches(ahead):
            if min(match.limits.drafted, match.limits.depth) <= score:
                continue  # no level of a tree is worth more than one token
            continuations = best_first(match.start, match.followers, match.limits, match.order)
            worth = sum(continuations.counts) / match.seen
            if worth > score:
                best, score = continuations, worth
        return best.parents, best.tokens

    @abstractmethod
    def _matches(self, ahead: Sequence[int]) -> Iterable[Match]:
        """What the text, and these tokens after it, may go on from; what is preferred comes first."""
