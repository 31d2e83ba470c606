"""Suffix decoding: continuations of the longest matches, with probabilities from their counts."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf, isfinite
from typing import NamedTuple

from treespec.checks import require_in_vocabulary
from treespec.draft.text.best_first import Follower, Limits, Match
from treespec.draft.text.compiled import CompiledTrie, by_suffixes
from treespec.draft.text.ngrams import followers_in
from treespec.draft.text.suffix_counts import SuffixCounts
from treespec.draft.text.text_source import MatchingSource
from treespec.draft.text.trie import Locus, Trie
from treespec.errors import InvalidArgument

NEARLY_WHOLE = 1e-6
"""Added before a budget is rounded down, because 0.29 * 100 is less than 29 in floating point."""


class Place(NamedTuple):
    """The occurrences of a string.

    Args:
        windows: its place in the trie of complete windows; None if it does not occur there.
        ending: the positions after it in the open end of the text.
    """

    windows: Locus | None
    ending: list[int]


class SuffixTree(MatchingSource):
    """Drafts what followed earlier occurrences of the end of the text, in this text or in earlier ones.

    SuffixDecoding (arXiv:2411.04975): one suffix tree with counts for this text, prompt and output, and one
    for earlier texts (`past`). Every suffix of the text, of m tokens, that occurs in a tree may begin a
    draft: best first by probability, which is the product of the ratios of child count to parent count
    along the path; at most `factor` m + `offset` tokens, none less probable than `least`. A draft's score
    is the sum of the probabilities of its nodes, the expected number of accepted tokens if the counts are
    right. The best score wins; in case of ties the longer suffix, then this text. Of equally probable nodes
    the one found first is taken, of siblings the one seen first.

    As in ArcticInference (commit 9d46438), the end of this text counts as an occurrence, though nothing
    follows it yet. Ours differs in how the tree is stored (`SuffixCounts`), and limits the number of
    children.

    The children are DETERMINISTIC, a function of the texts: above temperature 0 only rules for this law
    preserve the target's distribution.

    Args:
        depth: maximum depth of a tree, at least 1.
        size: maximum number of nodes, the root included; None for a chain of `depth`.
        branching: maximum number of children of a node; with 1 the trees are chains.
        window: maximum length of a match and its continuation together, at least 2.
        factor: draft tokens per token of the match, at least 0.
        offset: draft tokens in addition to these.
        least: probability below which no token is drafted, in [0, 1].
        past: earlier texts, all of them ended; they are only read, and kept when a new prompt begins.
        vocab_size: the target's vocabulary size, to refuse larger ids in `past`; None to skip the check.

    Raises:
        InvalidArgument: if an argument is not such a number, a branching above 1 is given without a size,
            or `past` has a text that has not ended, or ids beyond the vocabulary.
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
        self.factor, self.offset, self.least = factor, offset, least
        if not (0 <= factor < inf and isfinite(offset) and 0 <= least <= 1):
            raise InvalidArgument(
                f"factor = {factor}, offset = {offset}, least = {least}: must be at least 0 and finite, "
                "finite, and a probability"
            )
        if past is not None and past.open_ending():
            raise InvalidArgument(
                "past has a text that has not ended: call past.end() after its last token"
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

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        trie, past = self._text.trie, None if self.past is None else self.past.trie
        if isinstance(trie, CompiledTrie) and not isinstance(past, Trie):
            settings = self.factor, self.offset, self.least
            return by_suffixes(trie, past, ahead, settings, self.limits)
        return super()._after(ahead)

    def _matches(self, ahead: Sequence[int]) -> Iterator[Match]:
        ending = [*self._ending, *ahead]
        # The longest match first: a later one wins only with a better score.
        yield from self._matches_in(self._text, [*self._text.open_ending(), *ahead], ending)
        if self.past is not None:
            yield from self._matches_in(self.past, [], ending)

    def _matches_in(
        self, counts: SuffixCounts, tail: Sequence[int], ending: Sequence[int]
    ) -> Iterator[Match]:
        """The matches of suffixes of this text in a tree, the longest first.

        `tail`: the open end of the tree's text, followed by the tokens ahead of it.
        """
        window, followers = counts.window, self._followers(counts, tail)
        by_length: list[tuple[int, Place, int]] = []
        # Positions in the tail after occurrences of the suffix; the last one is the end of the text.
        ends = list(range(1, len(tail) + 1))
        for length in range(1, min(window - 1, len(ending)) + 1):
            ends = [end for end in ends if end >= length and tail[end - length] == ending[-length]]
            windows = counts.find(ending[-length:])
            seen = len(ends) + (counts.count(windows) if windows else 0)
            if seen <= bool(tail):  # only the end of the text itself
                break
            by_length.append((length, Place(windows, ends), seen))
        for length, place, seen in reversed(by_length):
            limits = self._limits(window, length)
            if limits is not None:
                yield Match(place, partial(followers, seen), _by_count, seen, limits)

    def _limits(self, window: int, length: int) -> Limits | None:
        """The limits of a draft that continues a match of this length; None if it may have no token."""
        budget = int(self.factor * length + self.offset + NEARLY_WHOLE)
        drafted, depth = min(budget, self.limits.drafted), min(window - length, self.max_depth)
        if drafted < 1 or depth < 1:
            return None
        return Limits(depth, drafted + 1, self.limits.branching)

    def _followers(
        self, counts: SuffixCounts, tail: Sequence[int]
    ) -> Callable[[int, Place], list[Follower]]:
        """A function from the count of a match and a place to the followers that are probable enough."""

        def followers(seen: int, place: Place) -> list[Follower]:
            in_tail = {follower.token: follower for follower in followers_in(tail, place.ending)}
            # A frequent string has thousands of followers, of which few are probable enough. This bound
            # discards most of them; the exact check below includes the open end of the text.
            most_in_tail = max((follower.count for follower in in_tail.values()), default=0)
            least_count = int(self.least * seen) - 1 - most_in_tail
            candidates = []
            in_windows = counts.followers(place.windows, least_count) if place.windows else ()
            for token, count, windows in in_windows:
                late = in_tail.pop(token, None)
                if late is None:
                    candidates.append(Follower(token, count, Place(windows, [])))
                else:
                    candidates.append(Follower(token, count + late.count, Place(windows, late.at)))
            candidates += [
                Follower(late.token, late.count, Place(None, late.at)) for late in in_tail.values()
            ]
            return [follower for follower in candidates if follower.count / seen >= self.least]

        return followers


def _by_count(follower: Follower, depth: int) -> int:
    return -follower.count
