"""Where strings of a few tokens stand in a text, and what followed them there."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from treespec.door import integer
from treespec.draft.best_first import Follower, Limits, Match

__all__ = ["END", "Ngrams", "followers_in", "matches_at", "most_places", "seen_last"]

END = -1
"""Between two texts."""


class Ngrams:
    """The places after which each string of 1 to `ngram` tokens was followed by something.

    A place is an index into `text`, of the token that followed. Several texts stand one after the other,
    with `END` between them; no string reaches over it.

    Args:
        ngram: most tokens of a string, at least 1.

    Raises:
        InvalidArgument: if that is no such integer.
    """

    def __init__(self, ngram: int) -> None:
        self.ngram = integer("ngram", ngram, least=1)
        self.text: list[int] = []
        self._begin = 0
        self._places: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def read(self, tokens: Sequence[int]) -> None:
        """Go on with the text."""
        text = self.text
        for token in tokens:
            here = len(text)
            for n in range(1, min(self.ngram, here - self._begin) + 1):
                self._places[tuple(text[-n:])].append(here)
            text.append(token)

    @contextmanager
    def reading(self, tokens: Sequence[int]) -> Iterator[None]:
        """The text goes on with these tokens as long as the `with` lasts."""
        length = len(self.text)
        self.read(tokens)
        try:
            yield
        finally:
            while len(self.text) > length:
                self._forget_last()

    def _forget_last(self) -> None:
        del self.text[-1]
        for n in range(1, min(self.ngram, len(self.text) - self._begin) + 1):
            string = tuple(self.text[-n:])
            places = self._places[string]
            del places[-1]
            if not places:
                del self._places[string]

    def end(self) -> None:
        """The text is over; the next one begins."""
        self.text.append(END)
        self._begin = len(self.text)

    def places(self, ending: Sequence[int], most: int) -> list[int]:
        """What followed the longest part of an ending that was ever followed by something.

        Args:
            ending: tokens; the last `ngram` of them are looked up, then one less, down to one.
            most: places; the latest are taken.

        Returns:
            Places in rising order; none if even the last token is new.
        """
        for n in range(min(self.ngram, len(ending)), 0, -1):
            places = self._places.get(tuple(ending[-n:]))
            if places:
                return places[-most:]
        return []

    def followers(self, places: Sequence[int]) -> list[Follower]:
        """The tokens that stand at places, with the places after them."""
        return followers_in(self.text, places)


def followers_in(text: Sequence[int], places: Sequence[int]) -> list[Follower]:
    """The tokens that stand at places of a text, with the places after them, in the order of places."""
    after: dict[int, list[int]] = defaultdict(list)
    for place in places:
        if place < len(text) and text[place] != END:
            after[text[place]].append(place + 1)
    return [Follower(token, len(places), places) for token, places in after.items()]


def seen_last(follower: Follower, depth: int) -> tuple[int, int, int]:
    """An order: what was seen more often first; of equals the shorter, then what was seen last."""
    return -follower.count, depth, -follower.at[-1]


def matches_at(
    places: Sequence[int], followers: Callable[[Sequence[int]], list[Follower]], limits: Limits
) -> list[Match]:
    """What a draft may go on from: one string, that was seen at these places; nothing without a place."""
    return [Match(places, followers, seen_last, len(places), limits)] if places else []


def most_places(places: int) -> int:
    """How many places of one string are asked, as an argument.

    Raises:
        InvalidArgument: if it is no integer of at least 1.
    """
    return integer("places", places, least=1)
