"""Retrieval: drafts what followed the longest matching suffix of the text in a datastore of other texts."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from treespec.checks import integer
from treespec.draft.text.best_first import Follower, Limits, Match
from treespec.draft.text.compiled import by_sorted_places, library
from treespec.draft.text.datastore import SORTED_TOKENS, Datastore
from treespec.draft.text.ngrams import END
from treespec.draft.text.text_source import MatchingSource
from treespec.errors import InvalidArgument

Places = NDArray[np.int32]


class Retrieval(MatchingSource):
    """Drafts the most frequent continuations of the end of the text in a datastore.

    REST (arXiv:2311.08252, commit 50a5fc1). The longest suffix of the text that occurs in the datastore, of
    at most `longest` and at least `shortest` tokens, is looked up. What followed at its places, `depth`
    tokens each, is counted in a trie, and the most frequent prefixes are drafted; in case of ties the
    shorter one, then the one with the smaller token id. Two continuations of ten tokens without a common
    token make 20 nodes; the original cuts by the lengths of complete paths and keeps 15. If a suffix has
    more than `hits` places, that many are consulted, spread evenly over their sorted order.

    The children are DETERMINISTIC, a function of text and datastore: above temperature 0 only rules for
    this law preserve the target's distribution.

    Args:
        datastore: an open datastore; it is only read.
        depth: maximum depth of a tree, at least 1; `depth` + `longest` must be at most 32.
        size: maximum number of nodes, the root included; None for a chain of `depth`.
        branching: maximum number of children of a node; with 1 the trees are chains.
        longest: maximum number of tokens of a suffix to look up.
        shortest: minimum number of tokens of a suffix to look up.
        hits: maximum number of places to consult.

    Raises:
        InvalidArgument: if an argument is not such an integer, or a branching above 1 is given without a
            size.
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
                "lower one of them"
            )

    def _restart(self) -> None:
        self._ending: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        self._ending = [*self._ending, *tokens[-self.longest :]][-self.longest :]

    def _matches(self, ahead: Sequence[int]) -> list[Match]:
        ending = [*self._ending, *ahead][-self.longest :]
        length, matches = self.datastore.longest(ending, self.shortest)
        hits = min(len(matches), self.hits)
        chosen = matches.start + np.arange(hits) * len(matches) // max(hits, 1)
        if not hits:
            return []
        tokens, places = self.datastore.tokens, self.datastore.places[chosen] + np.int32(length)
        search = None
        if library() is not None:
            search = partial(by_sorted_places, tokens, places, self.limits)
        return [Match(places, self._followers, _by_count, hits, self.limits, search)]

    def _followers(self, places: Places) -> list[Follower]:
        """The tokens at these places; equal tokens are adjacent, as places are sorted by what follows."""
        if not len(places):
            return []
        tokens = self.datastore.tokens[places]
        begins = [0, *(np.flatnonzero(tokens[1:] != tokens[:-1]) + 1).tolist(), len(tokens)]
        groups = zip(tokens[begins[:-1]].tolist(), begins, begins[1:], strict=False)
        return [
            Follower(token, end - begin, places[begin:end] + 1)
            for token, begin, end in groups
            if token != END
        ]


def _by_count(follower: Follower, depth: int) -> tuple[int, int, int]:
    return -follower.count, depth, follower.token
