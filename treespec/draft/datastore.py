"""A datastore of texts: one file with their tokens and a suffix array, read where it lies."""

import json
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from treespec.door import integer
from treespec.draft.ngrams import END
from treespec.draft.state import require_same_tokens
from treespec.draft.vocabulary import plain_tokens
from treespec.errors import InvalidArgument, Unreadable
from treespec.reading import open_file, parse_json
from treespec.whole_file import write_whole

__all__ = ["Datastore", "suffix_array"]

FORMAT, VERSION = "treespec datastore", 1

HEAD_BYTES = 4096
"""Bytes before the tokens: a line of JSON, filled up with spaces."""

SORTED_TOKENS = 32
"""Tokens by which suffixes are sorted: no match and no continuation reaches further."""

LARGEST_ID = 2**31 - 1
MOST_TOKENS = 2**31 - 1

Ids = NDArray[np.int32]


class Datastore:
    """Texts, searched for any string of up to `SORTED_TOKENS` tokens in time that grows with the log.

    The file holds the tokens of all texts, `END` after each, and the places at which they stand in the
    order of what follows (a suffix array, sorted by `SORTED_TOKENS` tokens): four bytes each for a token.
    It is mapped into memory, and the system reads the pages that are looked at.

    Args:
        path: of a file that `build` wrote.
        vocab_size: of the target, to refuse ids beyond it; None to look at nothing.
        tokenizer: digest of the target's (`treespec.draft.state.tokenizer_digest`); empty to look at
            nothing.

    Raises:
        Unreadable: if there is no such file, it is cut off, damaged or newer, or was made with another
            tokenizer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
    ) -> None:
        self.path = Path(path)
        with open_file(path, most=HEAD_BYTES + 8 * MOST_TOKENS) as file:
            self.about = _header(os.fspath(path), file)
            require_same_tokens(os.fspath(path), self.about, vocab_size, tokenizer)
            count = self.about["tokens"]
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.tokens: Ids = np.frombuffer(mapped, dtype="<i4", count=count, offset=HEAD_BYTES)
        self.places: Ids = np.frombuffer(
            mapped, dtype="<i4", count=count, offset=HEAD_BYTES + 4 * count
        )

    @classmethod
    def build(
        cls,
        path: str | os.PathLike[str],
        texts: Iterable[Sequence[int]],
        *,
        vocab_size: int,
        tokenizer: str = "",
    ) -> "Datastore":
        """Write a datastore, and open it.

        Args:
            path: of the file; one that is there is replaced once the new one is whole.
            texts: token ids of each; empty ones are left out.
            vocab_size: of the tokenizer.
            tokenizer: its digest (`treespec.draft.state.tokenizer_digest`), if it is known: configs refuse
                a datastore without it.

        Raises:
            InvalidArgument: if a text is no row of token ids of the vocabulary, or there is no text.
            OSError: if the file cannot be written.
        """
        vocab_size = integer("vocab_size", vocab_size, least=1, most=LARGEST_ID)
        rows: list[Ids] = []
        for i, text in enumerate(texts):
            ids = plain_tokens(f"texts[{i}]", text, vocab_size)
            if ids:
                rows.append(np.array([*ids, END], dtype="<i4"))
        if not rows:
            raise InvalidArgument("texts has no token: a datastore needs a text at least")
        tokens = np.concatenate(rows)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "vocab_size": vocab_size,
            "tokenizer": tokenizer,
            "texts": len(rows),
            "tokens": len(tokens),
            "sorted_by": SORTED_TOKENS,
        }
        _write(Path(path), header, tokens, suffix_array(tokens, SORTED_TOKENS))
        return cls(path, vocab_size=vocab_size, tokenizer=tokenizer)

    def find(self, string: Sequence[int]) -> range:
        """Where the places of a string are in `places`: those at which it begins.

        Args:
            string: at most `SORTED_TOKENS` tokens.
        """
        wanted = list(string)
        first = self._first(wanted, beyond=False)
        return range(first, self._first(wanted, beyond=True, low=first))

    def tokens_at(self, places: NDArray[np.int64]) -> Ids:
        """What stands at places; every text has an end, so each place behind a token has one.

        Raises:
            Unreadable: if a place is beyond the tokens, or holds an id beyond the vocabulary: the file is
                not what was built. So much is looked at where it is used, and not the whole file.
        """
        if places.max(initial=0) < len(self.tokens) and places.min(initial=0) >= 0:
            there = self.tokens[places]
            if there.max(initial=END) < self.about["vocab_size"] and there.min(initial=END) >= END:
                return there
        raise Unreadable(f"{self.path}: a damaged datastore: build it again")

    def longest(self, ending: Sequence[int], shortest: int) -> tuple[int, range]:
        """The longest part of an ending that stands in a text, and where.

        If a string stands in a text its endings do, so lengths are halved like places.

        Args:
            ending: tokens, at most `SORTED_TOKENS`.
            shortest: tokens of the shortest part that counts, at least 1.

        Returns:
            Its length, and its range as `find` gives it; 0 and no place if there is none.
        """
        low, high, matches = shortest - 1, len(ending), range(0)
        while low < high:
            middle = (low + high + 1) // 2
            places = self.find(ending[-middle:])
            if places:
                low, matches = middle, places
            else:
                high = middle - 1
        return (low, matches) if matches else (0, range(0))

    def _first(self, string: list[int], beyond: bool, low: int = 0) -> int:
        """The first suffix, in order, that is not before a string; or that is beyond all it begins."""
        tokens, places, high = self.tokens, self.places, len(self.places)
        while low < high:
            middle = (low + high) // 2
            place = int(places[middle])
            here = tokens[place : place + len(string)].tolist()
            if here < string or (beyond and here == string):
                low = middle + 1
            else:
                high = middle
        return low


def suffix_array(tokens: Ids, sorted_by: int) -> Ids:
    """The places of a text in the order of the tokens that follow, compared so far and no further.

    Prefix doubling (Manber and Myers 1990): ranks by 1, 2, 4 ... tokens, each from the one before by a sort
    of pairs. Places that agree so far stay in the order of the text.

    Args:
        tokens: ids of at least -1.
        sorted_by: tokens that are compared, rounded up to a power of two.
    """
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    order, done = np.argsort(rank, kind="stable"), 1
    while done < sorted_by and rank[order[-1]] + 1 < len(tokens):
        pairs = rank * (len(tokens) + 1)
        pairs[:-done] += rank[done:] + 1  # behind the end there is nothing, which comes first
        order = np.argsort(pairs, kind="stable")
        there = pairs[order]
        rank[order] = np.concatenate([[0], np.cumsum(there[1:] != there[:-1])])
        done *= 2
    return order.astype("<i4")


def _header(name: str, file: IO[bytes]) -> dict[str, Any]:
    """What a file says of itself, if it is whole and of a version that is read here."""
    size = os.fstat(file.fileno()).st_size
    try:
        header = parse_json(file.read(HEAD_BYTES))
    except Unreadable:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Unreadable(f"{name}: no datastore: make one with `treespec datastore build`")
    if header.get("version") != VERSION:
        raise Unreadable(
            f"{name}: a datastore of version {header.get('version')}, but version {VERSION} is read here: "
            "install a newer treespec, or build it again"
        )
    count = header.get("tokens")
    texts = header.get("texts")
    whole = type(count) is int and type(texts) is int and 1 <= texts <= count
    if not whole or header.get("sorted_by") != SORTED_TOKENS:
        raise Unreadable(f"{name}: a damaged datastore: build it again")
    if size != HEAD_BYTES + 8 * count:
        raise Unreadable(
            f"{name}: {size:,} bytes, but a datastore of {count:,} tokens has {HEAD_BYTES + 8 * count:,}: "
            "it was cut off or changed; build it again"
        )
    return header


def _write(path: Path, header: Mapping[str, Any], tokens: Ids, places: Ids) -> None:
    def fill(file: IO[bytes]) -> None:
        file.write(json.dumps(header).encode().ljust(HEAD_BYTES - 1) + b"\n")
        tokens.tofile(file)
        places.tofile(file)

    write_whole(path, fill)
