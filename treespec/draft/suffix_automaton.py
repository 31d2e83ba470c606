"""Suffix automaton: the longest ending that stood before, wherever that was."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from treespec.door import integer
from treespec.draft.best_first import Follower, Limits, Match
from treespec.draft.text_source import MatchingSource

__all__ = ["Automaton", "SuffixAutomaton"]

NONE = -1


class Automaton:
    """The suffix automaton of a text that grows: which strings stand in it, and where first.

    Blumer et al. 1985. A state is a set of strings that end at the same places; the longest has `length`
    tokens, and its link leads to the longest of its endings that has more places. A token is read in
    amortised constant time, and adds at most two states.

    The first transition of a state is by the token that followed its first place, so only the others
    are kept with their tokens.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.steps = 0
        """States that were looked at in all."""
        self._known: dict[int, int] = {}
        # By state: longest string, link, tokens of the text before what follows its first place.
        self._length, self._link, self._end = array("i", [0]), array("i", [NONE]), array("i", [0])
        self._first = array("i", [NONE])
        self._others: dict[int, dict[int, int]] = {}
        self._last = 0
        self._undo: list[Callable[[], object]] | None = None
        """What takes back the changes of old states, while a text is read for a time."""

    @property
    def states(self) -> int:
        """Their number."""
        return len(self._length)

    def read(self, tokens: Sequence[int]) -> None:
        """Go on with the text."""
        for token in tokens:
            self._extend(self._known.setdefault(token, token))

    @contextmanager
    def reading(self, tokens: Sequence[int]) -> Iterator[None]:
        """The text goes on with these tokens as long as the `with` lasts."""
        length, states, last, self._undo = len(self.text), self.states, self._last, []
        try:
            self.read(tokens)
            yield
        finally:
            for undo in reversed(self._undo):
                undo()
            for state in range(states, self.states):
                self._others.pop(state, None)
            for column in (self._length, self._link, self._end, self._first):
                del column[states:]
            del self.text[length:]
            self._last, self._undo = last, None

    def longest(self) -> tuple[int, int]:
        """The longest ending of the text that stands in it earlier too.

        Returns:
            Its tokens, and the index of the token that followed it at its first place; (0, 0) if the last
            token is new.
        """
        state = self._link[self._last]
        return (self._length[state], self._end[state]) if state > 0 else (0, 0)

    def _extend(self, token: int) -> None:
        self.text.append(token)
        new = self._new(len(self.text), 0, len(self.text))
        state, self._last = self._last, new
        while state != NONE and (after := self._follow(state, token)) == NONE:
            self._lead(state, token, new)
            state = self._link[state]
            self.steps += 1
        self.steps += 1
        if state == NONE:
            return
        if self._length[after] == self._length[state] + 1:
            self._link[new] = after
            return
        twin = self._new(self._length[state] + 1, self._link[after], self._end[after])
        self._first[twin] = self._first[after]
        if after in self._others:
            self._others[twin] = dict(self._others[after])
        while state != NONE and self._follow(state, token) == after:
            self._lead(state, token, twin)
            state = self._link[state]
            self.steps += 1
        self._set(self._link, after, twin)
        self._link[new] = twin

    def _follow(self, state: int, token: int) -> int:
        """Where a token leads from a state; NONE if nowhere."""
        if self._first[state] != NONE and self.text[self._end[state]] == token:
            return self._first[state]
        others = self._others.get(state)
        return NONE if others is None else others.get(token, NONE)

    def _lead(self, state: int, token: int, to: int) -> None:
        if self.text[self._end[state]] == token:
            self._set(self._first, state, to)
            return
        others = self._others.setdefault(state, {})
        if self._undo is not None:
            before = others.get(token)
            put_back = (
                partial(others.pop, token)
                if before is None
                else partial(others.update, {token: before})
            )
            self._undo.append(put_back)
        others[token] = to

    def _set(self, column: "array[int]", state: int, value: int) -> None:
        if self._undo is not None:
            self._undo.append(partial(column.__setitem__, state, column[state]))
        column[state] = value

    def _new(self, length: int, link: int, end: int) -> int:
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        self._first.append(NONE)
        return len(self._length) - 1


class SuffixAutomaton(MatchingSource):
    """Drafts the tokens that followed the longest ending of the text at its first place: a chain.

    The online half of SAM-Decoding (arXiv:2411.10666, commit 18c41f0): the automaton of prompt and output
    says in amortised constant time where the longest ending stood before, of any length; it counts
    nothing. `SuffixTree` answers the other question, how likely each continuation is, for endings of
    limited length. Their static automaton over a corpus has its place in `Retrieval`, and switching to
    another source after short matches in a merge of sources.

    The children are DETERMINISTIC, a function of the text: above temperature 0 only rules for that law keep
    the target's distribution.

    Args:
        depth: most draft tokens, at least 1.
        shortest: tokens of the shortest ending that begins a draft, at least 1.

    Raises:
        InvalidArgument: if one of them is no such integer.
    """

    def __init__(self, depth: int, *, shortest: int = 1) -> None:
        self.limits = Limits(depth)
        self.max_depth = self.limits.depth
        self.shortest = integer("shortest", shortest, least=1)

    def _restart(self) -> None:
        self._automaton = Automaton()

    def _read(self, tokens: Sequence[int]) -> None:
        self._automaton.read(tokens)

    def _after(self, ahead: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        with self._automaton.reading(ahead):
            return super()._after(())

    def _matches(self, ahead: Sequence[int]) -> list[Match]:
        length, begin = self._automaton.longest()
        if length < self.shortest:
            return []
        return [Match(begin, self._follower, _by_depth, 1, self.limits)]

    def _follower(self, place: int) -> list[Follower]:
        text = self._automaton.text
        return [Follower(text[place], 1, place + 1)] if place < len(text) else []


def _by_depth(follower: Follower, depth: int) -> int:
    return depth
