"""How often each short string stands in texts: a compressed trie of all windows, with counts."""

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import count, pairwise
from os import PathLike
from typing import NamedTuple

import numpy as np

from treespec.door import integer
from treespec.draft.best_first import Follower
from treespec.draft.state import load_state, save_state
from treespec.draft.vocabulary import plain_tokens
from treespec.errors import InvalidArgument, Unreadable

__all__ = ["Locus", "SuffixCounts"]

ROOT = 0

KIND = "suffix tree of texts"


class Locus(NamedTuple):
    """A place in the trie: so many tokens of the edge that leads to a node."""

    node: int
    along: int


class SuffixCounts:
    """The suffix trees of texts, cut at a depth, in one trie with counts.

    From each token of a text on, a window of at most `window` tokens is put into the trie: a suffix tree
    cut at that depth, edges compressed, each edge a stretch of the text itself. The count of a node is the
    number of windows through it, that is of the places where its string stands. A text that is still being
    read has its last `window - 1` beginnings outside of the trie until their windows are full, or it ends.

    Reading a token takes one walk down the trie, at most `window` comparisons; a text of T tokens makes at
    most 2 T nodes, however it repeats, and what texts that are dropped leave behind has no more.

    Texts that have ended can be dropped again, the oldest first: as many as `most_tokens` asks for when
    one ends, as SuffixDecoding does with past outputs. An edge always lies in the latest text through it,
    so dropping leaves the others whole.

    Args:
        window: the longest string that is counted, at least 2.
        most_tokens: of texts that are over, at least 1; the oldest are dropped, the latest is kept whatever
            its length. None for no limit.

    Raises:
        InvalidArgument: if one of them is no such integer.
    """

    def __init__(self, window: int = 64, most_tokens: int | None = None) -> None:
        self.window = integer("window", window, least=2)
        self.most_tokens = None
        if most_tokens is not None:
            self.most_tokens = integer("most_tokens", most_tokens, least=1)
        self._known: dict[int, int] = {}  # one object for each token id, not one for each token
        self._text: list[int] = []
        self._dropped = 0  # tokens before the first that is kept
        self._ends: deque[int] = deque()  # of texts that are over
        self._begin = self._next = 0  # of this text; of the next window
        # By node: windows through it, where its edge begins, how long that is, its children.
        self._count = array("q", [0])
        self._at = array("q", [0])
        self._length = array("i", [0])
        self._children: list[dict[int, int] | None] = [{}]
        self._free: list[int] = []

    def __len__(self) -> int:
        """Tokens that are counted."""
        return len(self._text)

    @property
    def nodes(self) -> int:
        """Nodes of the trie, its root included."""
        return len(self._count) - len(self._free)

    @property
    def largest_id(self) -> int:
        """The largest token id that was ever read; -1 before any."""
        return max(self._known, default=-1)

    @property
    def texts(self) -> list[list[int]]:
        """The texts that are over, the oldest first."""
        cuts = [0, *(end - self._dropped for end in self._ends)]
        return [self._text[a:b] for a, b in pairwise(cuts)]

    def read(self, tokens: Sequence[int]) -> None:
        """Go on with the text."""
        known, text, window = self._known, self._text, self.window
        for token in tokens:
            text.append(known.setdefault(token, token))
            if len(text) + self._dropped - self._next == window:
                self._insert(self._next, window)
                self._next += 1

    def end(self) -> None:
        """The text is over: its last, shorter windows are counted, and the next one begins.

        The oldest texts are dropped if all have more than `most_tokens`.
        """
        end = len(self._text) + self._dropped
        while self._next < end:
            self._insert(self._next, end - self._next)
            self._next += 1
        if end > self._begin:
            self._ends.append(end)
        self._begin = end
        while self.most_tokens is not None and len(self) > self.most_tokens and len(self._ends) > 1:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Forget the oldest text that is over, if there is one."""
        if not self._ends:
            return
        begin, end = self._dropped, self._ends.popleft()
        for at in range(begin, end):
            self._remove(at, min(self.window, end - at))
        del self._text[: end - begin]
        self._dropped = end

    def save(self, path: str | PathLike[str], *, vocab_size: int, tokenizer: str = "") -> None:
        """Write the texts that are over, for `load`.

        Args:
            path: of the file.
            vocab_size: of the model.
            tokenizer: its digest (`treespec.draft.state.tokenizer_digest`), if it is known: configs refuse
                a file without it.

        Raises:
            OSError: if it cannot be written.
        """
        texts = self.texts
        arrays = {
            "window": np.array([self.window]),
            "lengths": np.array([len(text) for text in texts], dtype=np.int64),
            "tokens": np.array([token for text in texts for token in text], dtype=np.int64),
        }
        save_state(path, KIND, arrays, vocab_size, tokenizer)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
        most_tokens: int | None = None,
    ) -> "SuffixCounts":
        """The texts that `save` wrote, counted again.

        Args:
            path: of the file.
            vocab_size: of the target; None to look at nothing.
            tokenizer: its digest; empty to look at nothing.
            most_tokens: see the class; the oldest texts are left out.

        Raises:
            InvalidArgument: if `most_tokens` is no such integer.
            Unreadable: if there is no such file, it is damaged or newer, or was made of another model's
                tokens.
        """
        cls(most_tokens=most_tokens)  # refused by its name, before the file is looked at
        wanted = {"window": 1, "lengths": 1, "tokens": 1}
        arrays = load_state(path, KIND, wanted, vocab_size, tokenizer)
        window, lengths = arrays["window"].tolist(), arrays["lengths"].tolist()
        if len(window) != 1 or sum(lengths) != len(arrays["tokens"]) or min(lengths, default=1) < 1:
            raise Unreadable(f"{path}: damaged: its texts have other lengths than it says")
        try:
            counts, done = cls(window[0], most_tokens), 0
            tokens = plain_tokens("tokens", arrays["tokens"].tolist(), vocab_size)
        except InvalidArgument as error:
            raise Unreadable(f"{path}: damaged: {error}; make it again") from None
        for length in lengths:
            counts.read(tokens[done : done + length])
            counts.end()
            done += length
        return counts

    def open_ending(self) -> list[int]:
        """The end of the text that is being read: all tokens whose windows are not counted yet."""
        return self._text[self._next - self._dropped :]

    def find(self, string: Sequence[int]) -> Locus | None:
        """Where a string ends in the trie; None if no window begins with it."""
        wanted, node, done = list(string), ROOT, 0
        while done < len(wanted):
            child = (self._children[node] or {}).get(wanted[done])
            if child is None:
                return None
            length = min(self._length[child], len(wanted) - done)
            if self._same(child, wanted[done : done + length]) < length:
                return None
            node, done = child, done + length
            if length < self._length[child]:
                return Locus(child, length)
        return Locus(node, self._length[node])

    def count(self, at: Locus) -> int:
        """How often the string stands that ends there."""
        return self._count[at.node]

    def followers(self, at: Locus, least: int = 1) -> list[Follower]:
        """What followed the string that ends there at least so often, as far as windows go."""
        node, along = at
        counts = self._count
        if along < self._length[node]:
            token = self._text[self._at[node] + along - self._dropped]
            often = counts[node]
            return [Follower(token, often, Locus(node, along + 1))] if often >= least else []
        children = self._children[node] or {}
        return [
            Follower(token, often, Locus(child, 1))
            for token, child in children.items()
            if (often := counts[child]) >= least
        ]

    def _same(self, node: int, string: list[int]) -> int:
        """How many tokens of a string, no longer than its edge, a node's edge begins with."""
        at = self._at[node] - self._dropped
        edge = self._text[at : at + len(string)]
        if edge == string:
            return len(string)
        return next(i for i, a, b in zip(count(), edge, string) if a != b)

    def _insert(self, begin: int, length: int) -> None:
        """Count the window of so many tokens that begins there."""
        counts, starts, lengths, below = self._count, self._at, self._length, self._children
        here = begin - self._dropped
        string = self._text[here : here + length]
        node, done = ROOT, 0
        counts[ROOT] += 1
        while done < length:
            children = below[node]
            if children is None:
                children = below[node] = {}
            child = children.get(string[done])
            if child is None:
                children[string[done]] = self._new(1, begin + done, length - done)
                return
            edge = lengths[child]
            # Most edges near the root are one token, which the look-up has compared. The larger the text,
            # the more of them a window passes.
            if edge > 1:
                same = self._same(child, string[done : done + edge])
                if same < edge:
                    child, edge = self._split(children, child, same), same
            counts[child] += 1
            starts[child] = begin + done  # the latest text through it
            node = child
            done += edge

    def _split(self, children: dict[int, int], node: int, along: int) -> int:
        """A node so far down the edge of another, between it and its parent."""
        at = self._at[node]
        upper = self._new(self._count[node], at, along)
        children[self._text[at - self._dropped]] = upper
        self._at[node], self._length[node] = at + along, self._length[node] - along
        self._children[upper] = {self._text[at + along - self._dropped]: node}
        return upper

    def _remove(self, begin: int, length: int) -> None:
        """Take back a window of the oldest text; what no window goes through any more is gone."""
        here = begin - self._dropped
        node, done = ROOT, 0
        above, first = None, -1  # the children that the node is one of, and its first token
        self._count[ROOT] -= 1
        while done < length:
            children = self._children[node]
            assert children is not None
            token = self._text[here + done]
            child = children[token]
            self._count[child] -= 1
            if not self._count[child]:
                del children[token]
                self._let_go(child)
                break
            above, first = children, token
            node, done = child, done + self._length[child]
        if above is not None:
            self._join(above, first)

    def _join(self, above: dict[int, int], first: int) -> None:
        """Make one edge of a node's and its only child's, if no window ends between them."""
        node = above[first]
        below = list((self._children[node] or {}).values())
        if len(below) == 1 and self._count[below[0]] == self._count[node]:
            (child,) = below
            # The latest text through both is the same one.
            self._at[child] -= self._length[node]
            self._length[child] += self._length[node]
            above[first] = child
            self._children[node] = None
            self._free.append(node)

    def _let_go(self, node: int) -> None:
        """Free a node that no window goes through, and the nodes below it."""
        below = [node]
        while below:
            node = below.pop()
            below += (self._children[node] or {}).values()
            self._children[node] = None
            self._free.append(node)

    def _new(self, windows: int, at: int, length: int) -> int:
        if self._free:
            node = self._free.pop()
            self._count[node], self._at[node], self._length[node] = windows, at, length
            return node
        self._count.append(windows)
        self._at.append(at)
        self._length.append(length)
        self._children.append(None)
        return len(self._count) - 1
