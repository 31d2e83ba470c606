"""Suffix decoding: continuations of the longest matches, as likely as their counts say."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf, isfinite
from typing import NamedTuple

from treespec.door import instance, number, shown
from treespec.draft.best_first import Follower, Limits, Match
from treespec.draft.ngrams import followers_in
from treespec.draft.suffix_counts import Locus, SuffixCounts
from treespec.draft.text_source import MatchingSource
from treespec.draft.vocabulary import require_in_vocabulary
from treespec.errors import InvalidArgument

__all__ = ["SuffixTree"]

NEARLY_WHOLE = 1e-6
"""Added before a budget is rounded down: 0.29 * 100 is less than 29 in floats."""


class Place(NamedTuple):
    """Where a string stands: in full windows, and in the open end of a text."""

    windows: Locus | None
    ending: list[int]


class SuffixTree(MatchingSource):
    """Drafts what followed the end of the text where it stood before, in this text or in earlier ones.

    SuffixDecoding (arXiv:2411.04975): one suffix tree with counts of this text, prompt and output, and one
    of earlier texts (`past`). Every ending of the text of m tokens that stands in a tree may begin a draft:
    best-first by probability, that is the product of count of child by count of parent, at most
    `factor` m + `offset` tokens, none less probable than `least`. A draft's score is the sum of the
    probabilities of its nodes: the expected number of accepted tokens if the counts are right. The best
    score wins, of equal ones the longer ending, then this text. Of equally probable nodes the one that was
    found first is taken, of siblings the one seen first.

    As in ArcticInference (commit 9d46438) the end of this text counts as one of the places where a string
    stands, though nothing follows it yet. Ours differs in how the tree is kept (`SuffixCounts`), and has a
    limit of children.

    The children are DETERMINISTIC, a function of the texts: above temperature 0 only rules for that law
    keep the target's distribution.

    Args:
        depth: most draft tokens below each other, at least 1.
        size: most nodes of a tree, the root included; None for a chain of `depth`.
        branching: most children of a node; with 1 the trees are chains.
        window: tokens of a match and its continuation together, at least 2.
        factor: draft tokens for each token of the match, at least 0.
        offset: draft tokens besides.
        least: probability below which nothing is drafted, in [0, 1].
        past: earlier texts, all of them over; they are read only, and kept when a prompt begins.
        vocab_size: of the target, to refuse ids of `past` beyond it; None to look at nothing.

    Raises:
        InvalidArgument: if one of them is no such number, a branching above 1 comes without a size, or
            `past` has a text that is not over, or ids beyond the vocabulary.
    """

    def __init__(
        self,
        depth: int,
        *,
        size: int | None = None,
        branching: int = 1,
        window: int = 64,
        factor: float = 1.0,
        offset: float = 0.0,
        least: float = 0.1,
        past: SuffixCounts | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.limits = Limits(depth, size, branching)
        self.max_depth = self.limits.depth
        self.window = SuffixCounts(window).window
        self.factor, self.offset = number("factor", factor), number("offset", offset)
        self.least = number("least", least)
        if not 0 <= self.factor < inf:
            raise InvalidArgument(f"factor = {shown(factor)}, but must be at least 0, and finite")
        if not isfinite(self.offset):
            raise InvalidArgument(f"offset = {shown(offset)}, but must be finite")
        if not 0 <= self.least <= 1:
            raise InvalidArgument(f"least = {shown(least)}, but is a probability: 0 to 1")
        if past is not None:
            instance("past", past, SuffixCounts, "SuffixCounts of earlier texts, or None")
            if past.open_ending():
                raise InvalidArgument(
                    "past has a text that is not over: call past.end() after its last token"
                )
        largest = -1 if past is None else past.largest_id
        require_in_vocabulary("past", largest, vocab_size)
        self.past = past

    def _restart(self) -> None:
        self._text = SuffixCounts(self.window)
        self._ending: list[int] = []

    def _read(self, tokens: Sequence[int]) -> None:
        self._text.read(tokens)
        longest = max(self.window, self.past.window if self.past else 0)
        self._ending = [*self._ending, *tokens[-longest:]][-longest:]

    def _matches(self, ahead: Sequence[int]) -> Iterator[Match]:
        ending = [*self._ending, *ahead]
        # The longest first: what comes later must be better to win.
        yield from self._matches_in(self._text, [*self._text.open_ending(), *ahead], ending)
        if self.past is not None:
            yield from self._matches_in(self.past, [], ending)

    def _matches_in(
        self, counts: SuffixCounts, tail: Sequence[int], ending: Sequence[int]
    ) -> Iterator[Match]:
        """What endings of this text may go on from in a tree, the longest first.

        Args:
            counts: the tree.
            tail: the open end of its text; what is ahead of that belongs to it.
            ending: of this text.
        """
        window, followers = counts.window, self._followers(counts, tail)
        by_length: list[tuple[int, Place, int]] = []
        # Of the ending in the tail; the last is the text's own.
        ends = list(range(1, len(tail) + 1))
        for length in range(1, min(window - 1, len(ending)) + 1):
            ends = [end for end in ends if end >= length and tail[end - length] == ending[-length]]
            windows = counts.find(ending[-length:])
            seen = len(ends) + (counts.count(windows) if windows else 0)
            if seen <= bool(tail):  # the end of the text itself
                break
            by_length.append((length, Place(windows, ends), seen))
        for length, place, seen in reversed(by_length):
            limits = self._limits(window, length)
            if limits is not None:
                yield Match(place, partial(followers, seen), _by_count, seen, limits)

    def _limits(self, window: int, length: int) -> Limits | None:
        """Of a draft that continues a match of this length; None if it may have no token."""
        budget = int(self.factor * length + self.offset + NEARLY_WHOLE)
        drafted, depth = min(budget, self.limits.drafted), min(window - length, self.max_depth)
        if drafted < 1 or depth < 1:
            return None
        return Limits(depth, drafted + 1, self.limits.branching)

    def _followers(
        self, counts: SuffixCounts, tail: Sequence[int]
    ) -> Callable[[int, Place], list[Follower]]:
        """What followed a place, of all that was seen so often, if that is probable enough."""

        def followers(seen: int, at: Place) -> list[Follower]:
            late = {follower.token: follower for follower in followers_in(tail, at.ending)}
            # A frequent string has thousands of followers, of which few are probable enough. Looked at
            # exactly below, where the open end of the text is counted too.
            latest = max((follower.count for follower in late.values()), default=0)
            enough = int(self.least * seen) - 1 - latest
            candidates = []
            for token, often, windows in counts.followers(at.windows, enough) if at.windows else ():
                more = late.pop(token, None)
                count, ending = (often + more.count, more.at) if more else (often, [])
                candidates.append(Follower(token, count, Place(windows, ending)))
            candidates += [Follower(f.token, f.count, Place(None, f.at)) for f in late.values()]
            return [follower for follower in candidates if follower.count / seen >= self.least]

        return followers


def _by_count(follower: Follower, depth: int) -> int:
    return -follower.count
