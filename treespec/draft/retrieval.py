"""Retrieval: what followed the longest ending of the text in a datastore of other texts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treespec.door import instance, integer
from treespec.draft.best_first import Follower, Limits, Match
from treespec.draft.datastore import SORTED_TOKENS, Datastore
from treespec.draft.ngrams import END
from treespec.draft.text_source import MatchingSource
from treespec.errors import InvalidArgument

__all__ = ["Retrieval"]

Places = NDArray[np.int64]


class Retrieval(MatchingSource):
    """Drafts the most frequent continuations that a datastore has of the end of the text.

    REST (arXiv:2311.08252, commit 50a5fc1). The longest ending of the text of at most `longest` and at
    least `shortest` tokens that stands in the datastore is taken. What followed at its places, `depth`
    tokens each, is counted into a trie, and the most frequent prefixes are drafted, of equally frequent
    ones the shorter, then that of the smaller token id. Two continuations of ten tokens that share none are
    20 nodes; the original cuts by the lengths of whole paths and keeps 15. Of an ending with more than
    `hits` places so many are asked, spread evenly over their order.

    The children are DETERMINISTIC, a function of text and datastore: above temperature 0 only rules for
    that law keep the target's distribution.

    Args:
        datastore: an open one; it is read only.
        depth: most draft tokens below each other, at least 1; with `longest` at most 32 in all.
        size: most nodes of a tree, the root included; None for a chain of `depth`.
        branching: most children of a node; with 1 the trees are chains.
        longest: most tokens of an ending that are looked up.
        shortest: fewest.
        hits: most places that are asked.

    Raises:
        InvalidArgument: if one of them is no such integer, or a branching above 1 comes without a size.
        Unreadable: while drafting, if the datastore is not what was built.
    """

    def __init__(
        self,
        datastore: Datastore,
        depth: int = 10,
        *,
        size: int | None = None,
        branching: int = 1,
        longest: int = 16,
        shortest: int = 2,
        hits: int = 5000,
    ) -> None:
        instance("datastore", datastore, Datastore, "an open Datastore")
        self.datastore = datastore
        self.limits = Limits(depth, size, branching)
        self.max_depth = self.limits.depth
        self.longest = integer("longest", longest, least=1)
        self.shortest = integer("shortest", shortest, least=1, most=self.longest)
        self.hits = integer("hits", hits, least=1)
        if self.longest + self.max_depth > SORTED_TOKENS:
            raise InvalidArgument(
                f"longest = {self.longest} and depth = {self.max_depth} are "
                f"{self.longest + self.max_depth} tokens, but a datastore is sorted by {SORTED_TOKENS}: "
                "lower one"
            )

    def _restart(self) -> None:
        self._ending: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        self._ending = [*self._ending, *tokens[-self.longest :]][-self.longest :]

    def _matches(self, ahead: Sequence[int]) -> list[Match]:
        ending = [*self._ending, *ahead][-self.longest :]
        length, matches = self.datastore.longest(ending, self.shortest)
        asked = min(len(matches), self.hits)
        chosen = matches.start + np.arange(asked) * len(matches) // max(asked, 1)
        places = self.datastore.places[chosen].astype(np.int64) + length
        return [Match(places, self._followers, _by_count, asked, self.limits)] if asked else []

    def _followers(self, places: Places) -> list[Follower]:
        """Equal tokens stand together, because places are in the order of what follows."""
        if not len(places):
            return []
        there = self.datastore.tokens_at(places)
        begins = [0, *(np.flatnonzero(there[1:] != there[:-1]) + 1).tolist(), len(there)]
        groups = zip(there[begins[:-1]].tolist(), begins, begins[1:], strict=False)
        return [
            Follower(token, end - begin, places[begin:end] + 1)
            for token, begin, end in groups
            if token != END
        ]


def _by_count(follower: Follower, depth: int) -> tuple[int, int, int]:
    return -follower.count, depth, follower.token
