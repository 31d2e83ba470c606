"""The places of short strings of tokens in a text, and what followed them there."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from treespec.checks import integer
from treespec.draft.text.best_first import Follower, Limits, Match
from treespec.draft.text.compiled import IDS, by_places, ids_of, library

END = -1
"""Separates two texts."""


class Ngrams:
    """An index of the places where each string of 1 to `ngram` tokens was followed by another token.

    A place is the index in `text` of the token that followed. Several texts stand one after another,
    separated by `END`; no string extends across it.

    `ngram`: maximum length of a string in tokens, at least 1.
    """

    def __init__(self, ngram: int) -> None:
        self.ngram = integer("ngram", ngram, least=1)
        library()  # compiled now, not while a step is timed
        self.text = array(IDS)
        self._begin = 0
        self._places: dict[tuple[int, ...], array[int]] = defaultdict(partial(array, IDS))

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        text = self.text
        for token in ids_of(tokens):
            place = len(text)
            for n in range(1, min(self.ngram, place - self._begin) + 1):
                self._places[tuple(text[-n:])].append(place)
            text.append(token)

    @contextmanager
    def reading(self, tokens: Sequence[int]) -> Iterator[None]:
        """Append tokens to the text for the duration of the context."""
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
        """End the text; the next token begins another."""
        self.text.append(END)
        self._begin = len(self.text)

    def places(self, ending: Sequence[int], most: int) -> "array[int]":
        """The places that followed the longest suffix of `ending` that was ever followed by a token.

        `ending`: tokens; the last `ngram` of them are looked up, then one fewer, down to one. `most`:
        maximum number of places; the latest are taken. Returns places in rising order; empty if even the
        last token is new.
        """
        for n in range(min(self.ngram, len(ending)), 0, -1):
            places = self._places.get(tuple(ending[-n:]))
            if places:
                return places[-most:]
        return array(IDS)

    def followers(self, places: Sequence[int]) -> list[Follower]:
        """The tokens at these places, with the places after them."""
        return followers_in(self.text, places)


def followers_in(text: Sequence[int], places: Sequence[int]) -> list[Follower]:
    """The tokens at these places of a text, with the places after them, in the order of `places`."""
    places_after: dict[int, list[int]] = defaultdict(list)
    for place in places:
        if place < len(text) and text[place] != END:
            places_after[text[place]].append(place + 1)
    return [Follower(token, len(after), after) for token, after in places_after.items()]


def seen_last(follower: Follower, depth: int) -> tuple[int, int, int]:
    """A sort key: more frequent continuations first, then shorter ones, then the one seen last."""
    return -follower.count, depth, -follower.at[-1]


def matches_at(texts: Ngrams, places: "array[int]", limits: Limits) -> list[Match]:
    """A single match, of the string seen before these places; none if there is no place."""
    if not places:
        return []
    search = None if library() is None else partial(by_places, texts.text, places, limits)
    return [Match(places, texts.followers, seen_last, len(places), limits, search)]


def most_places(places: int) -> int:
    """The argument `places`, the number of places of a string to consult, as a plain integer."""
    return integer("places", places, least=1)
