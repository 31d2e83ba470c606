"""The searches of text sources as compiled code (`kernels/text_search.cpp`), where there is a compiler.

Without one, the sources search in Python, some ten times slower and with the same trees.
"""

import ctypes
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treespec.draft.text.best_first import Follower, Limits
from treespec.draft.text.trie import Locus
from treespec.errors import InvalidArgument, Unavailable, Unreadable
from treespec.kernels.build import built_alone

IDS = "i"
"""Type code of arrays of token ids and places: 32 bits, as in the compiled code."""

_RESULTS: dict[Any, str] = {
    None: "trie_delete trie_read trie_finish trie_drop trie_find",
    ctypes.c_void_p: "trie_new trie_text",
    ctypes.c_int64: "trie_nodes trie_slots trie_open trie_length trie_history trie_count trie_followers "
    "suffixes places sorted_places longest",
}
"""Functions by the type of their result."""


class Drafted(NamedTuple):
    """A drafted tree: the parents of all nodes, and the tokens of all but the root."""

    parents: list[int]
    tokens: list[int]


@lru_cache(maxsize=1)
def library() -> Any | None:
    """The compiled searches; None where they cannot be compiled."""
    with suppress(Unavailable):
        code = built_alone("text_search.cpp")
        for kind, names in _RESULTS.items():
            for name in names.split():
                getattr(code, f"treespec_{name}").restype = kind
        return code
    return None


def ids_of(tokens: Sequence[int]) -> "array[int]":
    """Token ids as an array that compiled code can read.

    Raises:
        InvalidArgument: if they are not integers of 32 bits.
    """
    try:
        return array(IDS, tokens)
    except (OverflowError, TypeError):
        raise InvalidArgument("token ids must be integers below 2^31") from None


def by_places(text: "array[int]", places: "array[int]", limits: Limits) -> Drafted:
    """As `best_first` over the places of a text, ordered by `ngrams.seen_last`."""
    most = len(places) * min(limits.depth, len(text))
    return _drafted("places", limits, most, *_row(text), *_row(places))


def by_sorted_places(text: NDArray[np.int32], places: NDArray[np.int32], limits: Limits) -> Drafted:
    """As `best_first` over places that are sorted by what follows them, ordered as in `Retrieval`."""
    rows = ((ctypes.c_void_p(a.ctypes.data), ctypes.c_int64(len(a))) for a in (text, places))
    most = len(places) * min(limits.depth, len(text))
    return _drafted("sorted_places", limits, most, *chain.from_iterable(rows))


def by_suffixes(
    trie: "CompiledTrie",
    past: "CompiledTrie | None",
    ahead: Sequence[int],
    settings: Sequence[float],
    limits: Limits,
) -> Drafted:
    """The tree of `SuffixTree`; `settings` are its factor, offset and least probability."""
    ids = ids_of(ahead)
    tries = trie.handle, None if past is None else past.handle
    most = sum(each.window * (len(each) + len(ids)) for each in (trie, past) if each is not None)
    return _drafted("suffixes", limits, most, *tries, *_row(ids), *map(ctypes.c_double, settings))


def _drafted(search: str, limits: Limits, most: int, *arguments: Any) -> Drafted:
    """Run a search that finds at most `most` tokens, whatever the limits are."""
    most = min(most, limits.drafted)
    parents, tokens = (ctypes.c_int32 * (most + 1))(), (ctypes.c_int32 * (most + 1))()
    sizes = map(ctypes.c_int64, (limits.depth, most, limits.branching))
    drafted = getattr(library(), f"treespec_{search}")(*arguments, *sizes, parents, tokens)
    return Drafted(parents[: drafted + 1], tokens[:drafted])


def longest(
    text: NDArray[np.int32], places: NDArray[np.int32], ending: Sequence[int], shortest: int
) -> tuple[int, range]:
    """As `Datastore.longest`.

    Raises:
        Unreadable: if a place lies outside the texts.
    """
    code: Any = library()
    found, ids = (ctypes.c_int64 * 2)(), ids_of(ending)
    at = (ctypes.c_void_p(array.ctypes.data) for array in (text, places))
    length = code.treespec_longest(
        *at, ctypes.c_int64(len(places)), *_row(ids), ctypes.c_int64(shortest), found
    )
    if length < 0:
        raise Unreadable("a damaged datastore, with places outside its texts: build it again")
    return length, range(*found) if length else range(0)


class CompiledTrie:
    """`Trie`, held by compiled code."""

    def __init__(self, window: int) -> None:
        self.handle = None
        code: Any = library()
        self.code, self.window = code, window
        self.handle = ctypes.c_void_p(code.treespec_trie_new(ctypes.c_int64(window)))
        self._delete = code.treespec_trie_delete  # still there when the interpreter ends

    def __del__(self) -> None:
        if self.handle is not None:
            self._delete(self.handle)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies, which would free the same memory twice."""
        raise TypeError("a compiled trie cannot be copied: read its texts into another one")

    def read(self, tokens: Sequence[int]) -> None:
        ids = ids_of(tokens)
        self.code.treespec_trie_read(self.handle, *_row(ids))

    def finish(self) -> None:
        self.code.treespec_trie_finish(self.handle)

    def drop(self, count: int) -> None:
        self.code.treespec_trie_drop(self.handle, ctypes.c_int64(count))

    def __len__(self) -> int:
        return self.code.treespec_trie_length(self.handle)

    @property
    def nodes(self) -> int:
        return self.code.treespec_trie_nodes(self.handle)

    @property
    def slots(self) -> int:
        return self.code.treespec_trie_slots(self.handle)

    @property
    def state(self) -> tuple[int, ...]:
        """Window, hash of all that was read and dropped, and text: equal ones behave the same."""
        return self.window, self.code.treespec_trie_history(self.handle), *self.text()

    def text(self, begin: int = 0, end: int | None = None) -> list[int]:
        count = (len(self) if end is None else end) - begin
        start = self.code.treespec_trie_text(self.handle)
        if count <= 0 or not start:
            return []
        return (ctypes.c_int32 * count).from_address(start + 4 * begin)[:]

    def open_ending(self) -> list[int]:
        return self.text(self.code.treespec_trie_open(self.handle))

    def find(self, string: Sequence[int]) -> Locus | None:
        ids, locus = ids_of(string), (ctypes.c_int32 * 2)()
        self.code.treespec_trie_find(self.handle, *_row(ids), locus)
        node, along = locus
        return None if node < 0 else Locus(node, along)

    def count(self, at: Locus) -> int:
        return self.code.treespec_trie_count(self.handle, ctypes.c_int32(at.node))

    def followers(self, at: Locus, least: int = 1) -> list[Follower]:
        rows = (ctypes.c_int64 * 64)()
        while True:
            room = len(rows) // 4
            found = self.code.treespec_trie_followers(
                self.handle, *map(ctypes.c_int32, at), ctypes.c_int64(least), rows,
                ctypes.c_int64(room),
            )  # fmt: skip
            if found <= room:
                break
            rows = (ctypes.c_int64 * (4 * found))()
        each = (rows[4 * i : 4 * i + 4] for i in range(found))
        return [Follower(token, count, Locus(node, along)) for token, count, node, along in each]


def _row(ids: "array[int]") -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    """An array as two arguments; the caller keeps it alive."""
    address, count = ids.buffer_info()
    return ctypes.c_void_p(address), ctypes.c_int64(count)
