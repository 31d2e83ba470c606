"""Suffix automaton: finds the longest suffix of a text that occurred earlier, of any length."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from treespec.checks import integer
from treespec.draft.text.best_first import Follower, Limits, Match
from treespec.draft.text.text_source import MatchingSource

NONE = -1


class Automaton:
    """The suffix automaton of a growing text: which strings occur in it, and where they occur first.

    Blumer et al. 1985. A state is a set of strings that end at the same places; the longest has `length`
    tokens, and its suffix link leads to the state of its longest suffix with more places. A token is read
    in amortised constant time, and adds at most two states.

    The first transition of a state is by the token that followed its first occurrence, so only the other
    transitions are stored with their tokens.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.steps = 0
        """Total number of states visited."""
        self._known: dict[int, int] = {}  # one object for each token id, not one for each token
        # By state: length of its longest string, suffix link, index of the token after its first place,
        # and target of the transition by that token.
        self._length, self._link, self._end = array("i", [0]), array("i", [NONE]), array("i", [0])
        self._first = array("i", [NONE])
        self._others: dict[int, dict[int, int]] = {}  # further transitions, by state and token
        self._last = 0
        self._undo: list[Callable[[], object]] | None = None
        """Functions that undo the changes to older states while tokens are read temporarily."""

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self._length)

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._extend(self._known.setdefault(token, token))

    @contextmanager
    def reading(self, tokens: Sequence[int]) -> Iterator[None]:
        """Append tokens to the text for the duration of the context."""
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
        """The longest suffix of the text that also occurs earlier in it.

        Returns its length, and the index of the token that followed its first occurrence; (0, 0) if the
        last token is new.
        """
        state = self._link[self._last]
        return (self._length[state], self._end[state]) if state > 0 else (0, 0)

    def _extend(self, token: int) -> None:
        self.text.append(token)
        new = self._new(len(self.text), 0, len(self.text))
        state, self._last = self._last, new
        while state != NONE and (after := self._follow(state, token)) == NONE:
            self._set_transition(state, token, new)
            state = self._link[state]
            self.steps += 1
        self.steps += 1
        if state == NONE:
            return
        if self._length[after] == self._length[state] + 1:
            self._link[new] = after
            return
        clone = self._new(self._length[state] + 1, self._link[after], self._end[after])
        self._first[clone] = self._first[after]
        if after in self._others:
            self._others[clone] = dict(self._others[after])
        while state != NONE and self._follow(state, token) == after:
            self._set_transition(state, token, clone)
            state = self._link[state]
            self.steps += 1
        self._set(self._link, after, clone)
        self._link[new] = clone

    def _follow(self, state: int, token: int) -> int:
        """The state that a token leads to from a state; NONE if there is no such transition."""
        if self._first[state] != NONE and self.text[self._end[state]] == token:
            return self._first[state]
        transitions = self._others.get(state)
        return NONE if transitions is None else transitions.get(token, NONE)

    def _set_transition(self, state: int, token: int, target: int) -> None:
        if self.text[self._end[state]] == token:
            self._set(self._first, state, target)
            return
        transitions = self._others.setdefault(state, {})
        if self._undo is not None:
            before = transitions.get(token)
            undo = (
                partial(transitions.pop, token)
                if before is None
                else partial(transitions.update, {token: before})
            )
            self._undo.append(undo)
        transitions[token] = target

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
    """Drafts the chain of tokens that followed the first occurrence of the text's longest known suffix.

    The online half of SAM-Decoding (arXiv:2411.10666, commit 18c41f0): the automaton of prompt and output
    finds in amortised constant time where the longest suffix, of any length, occurred first; it counts
    nothing. `SuffixTree` answers another question, how likely each continuation is, for suffixes of limited
    length. For the static automaton over a corpus of SAM-Decoding, use `Retrieval`; for its switch to
    another source after short matches, a merge of sources.

    The children are DETERMINISTIC, a function of the text: above temperature 0 only rules for this law
    preserve the target's distribution.

    Args:
        depth: maximum number of draft tokens, at least 1.
        shortest: minimum length of a suffix that begins a draft, at least 1.

    Raises:
        InvalidArgument: if an argument is not such an integer.
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
        chain = partial(self._chain, begin)
        return [Match(begin, self._follower, _by_depth, 1, self.limits, chain)]

    def _chain(self, begin: int) -> tuple[Sequence[int], Sequence[int]]:
        """What `best_first` finds, at once: the tokens that follow a place."""
        tokens = self._automaton.text[begin : begin + self.max_depth]
        return range(-1, len(tokens)), tokens

    def _follower(self, place: int) -> list[Follower]:
        text = self._automaton.text
        return [Follower(text[place], 1, place + 1)] if place < len(text) else []


def _by_depth(follower: Follower, depth: int) -> int:
    return depth
