"""A trie of all windows of texts, with counts: a suffix tree cut at a depth."""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from treespec.draft.text.best_first import Follower

ROOT = 0


class Locus(NamedTuple):
    """A place in the trie."""

    node: int
    along: int


class Trie:
    """The windows of texts in a compressed trie; see `SuffixCounts`, which checks and counts tokens.

    Where there is a compiler, `CompiledTrie` takes its place; this is its reference.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._known: dict[int, int] = {}  # one object for each token id, not one for each token
        self._text: list[int] = []
        self._dropped = 0  # number of dropped tokens; positions below include them
        self._next = 0  # beginning of the next window
        # By node: number of windows through it, begin and length of its edge, children by first token.
        self._count = array("q", [0])
        self._edge_begin = array("q", [0])
        self._length = array("i", [0])
        self._children: list[dict[int, int] | None] = [{}]
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._text)

    @property
    def nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self._count) - len(self._free)

    @property
    def slots(self) -> int:
        """Number of nodes that there is memory for."""
        return len(self._count)

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text, and insert the windows that they complete."""
        known, text, window = self._known, self._text, self.window
        for token in tokens:
            text.append(known.setdefault(token, token))
            if len(text) + self._dropped - self._next == window:
                self._insert(self._next, window)
                self._next += 1

    def finish(self) -> None:
        """Insert the last, shorter windows of the text, which ends here."""
        end = len(self._text) + self._dropped
        while self._next < end:
            self._insert(self._next, end - self._next)
            self._next += 1

    def drop(self, length: int) -> None:
        """Drop the first text, which has this length and has ended."""
        begin, end = self._dropped, self._dropped + length
        for window_begin in range(begin, end):
            self._remove(window_begin, min(self.window, end - window_begin))
        del self._text[:length]
        self._dropped = end

    def text(self, begin: int = 0, end: int | None = None) -> list[int]:
        """The tokens that it holds."""
        return self._text[begin:end]

    def open_ending(self) -> list[int]:
        """All tokens whose windows are not inserted yet."""
        return self._text[self._next - self._dropped :]

    def find(self, string: Sequence[int]) -> Locus | None:
        """The place in the trie where a string ends; None if no window begins with the string."""
        wanted, node, done = list(string), ROOT, 0
        while done < len(wanted):
            child = (self._children[node] or {}).get(wanted[done])
            if child is None:
                return None
            length = min(self._length[child], len(wanted) - done)
            if self._common(child, wanted[done : done + length]) < length:
                return None
            node, done = child, done + length
            if length < self._length[child]:
                return Locus(child, length)
        return Locus(node, self._length[node])

    def count(self, at: Locus) -> int:
        """How often the string that ends at this place occurs in complete windows."""
        return self._count[at.node]

    def followers(self, at: Locus, least: int = 1) -> list[Follower]:
        """The tokens that followed the string at this place at least `least` times, within windows."""
        node, along = at
        counts = self._count
        if along < self._length[node]:
            token = self._text[self._edge_begin[node] + along - self._dropped]
            seen = counts[node]
            return [Follower(token, seen, Locus(node, along + 1))] if seen >= least else []
        children = self._children[node] or {}
        return [
            Follower(token, seen, Locus(child, 1))
            for token, child in children.items()
            if (seen := counts[child]) >= least
        ]

    def _common(self, node: int, string: list[int]) -> int:
        """Length of the common prefix of a node's edge and a string that is no longer than the edge."""
        begin = self._edge_begin[node] - self._dropped
        edge = self._text[begin : begin + len(string)]
        if edge == string:
            return len(string)
        return next(i for i, a, b in zip(count(), edge, string) if a != b)

    def _insert(self, begin: int, length: int) -> None:
        """Count the window of `length` tokens at position `begin`."""
        counts, begins, lengths = self._count, self._edge_begin, self._length
        children_of = self._children
        index = begin - self._dropped
        string = self._text[index : index + length]
        node, done = ROOT, 0
        counts[ROOT] += 1
        while done < length:
            children = children_of[node]
            if children is None:
                children = children_of[node] = {}
            child = children.get(string[done])
            if child is None:
                children[string[done]] = self._new(1, begin + done, length - done)
                return
            edge = lengths[child]
            # Most edges near the root are one token long, which the look-up has already compared. The
            # larger the text, the more such edges a window passes.
            if edge > 1:
                common = self._common(child, string[done : done + edge])
                if common < edge:
                    child, edge = self._split(children, child, common), common
            counts[child] += 1
            begins[child] = begin + done  # the edge lies in the latest text through it
            node = child
            done += edge

    def _split(self, children: dict[int, int], node: int, along: int) -> int:
        """Split a node's edge after `along` tokens by a new node between it and its parent."""
        begin = self._edge_begin[node]
        upper = self._new(self._count[node], begin, along)
        children[self._text[begin - self._dropped]] = upper
        self._edge_begin[node], self._length[node] = begin + along, self._length[node] - along
        self._children[upper] = {self._text[begin + along - self._dropped]: node}
        return upper

    def _remove(self, begin: int, length: int) -> None:
        """Uncount a window of the oldest text, and free the nodes that no window passes any more."""
        index = begin - self._dropped
        node, done = ROOT, 0
        siblings, first = (
            None,
            -1,
        )  # of the node: its parent's children, and the first token of its edge
        self._count[ROOT] -= 1
        while done < length:
            children = self._children[node]
            assert children is not None
            token = self._text[index + done]
            child = children[token]
            self._count[child] -= 1
            if not self._count[child]:
                del children[token]
                self._release(child)
                break
            siblings, first = children, token
            node, done = child, done + self._length[child]
        if siblings is not None:
            self._join(siblings, first)

    def _join(self, siblings: dict[int, int], first: int) -> None:
        """Join a node's edge with that of its only child, if no window ends between them."""
        node = siblings[first]
        children = list((self._children[node] or {}).values())
        if len(children) == 1 and self._count[children[0]] == self._count[node]:
            (child,) = children
            # The same text is the latest through both.
            self._edge_begin[child] -= self._length[node]
            self._length[child] += self._length[node]
            siblings[first] = child
            self._children[node] = None
            self._free.append(node)

    def _release(self, node: int) -> None:
        """Free a node that no window passes, and all nodes below it."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            waiting += (self._children[node] or {}).values()
            self._children[node] = None
            self._free.append(node)

    def _new(self, windows: int, edge_begin: int, length: int) -> int:
        if self._free:
            node = self._free.pop()
            self._count[node], self._edge_begin[node] = windows, edge_begin
            self._length[node] = length
            return node
        self._count.append(windows)
        self._edge_begin.append(edge_begin)
        self._length.append(length)
        self._children.append(None)
        return len(self._count) - 1
