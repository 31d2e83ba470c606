"""A datastore of texts: one memory-mapped file with their tokens and a suffix array."""

import json
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from treespec.checks import integer, plain_tokens
from treespec.draft.state import require_same_tokens
from treespec.draft.text.compiled import library, longest
from treespec.draft.text.ngrams import END
from treespec.errors import InvalidArgument, Unreadable
from treespec.files import open_file, parse_json, write_whole

FORMAT, VERSION = "treespec datastore", 1

HEAD_BYTES = 4096
"""Bytes before the tokens: a line of JSON, padded with spaces."""

SORTED_TOKENS = 32
"""Number of tokens by which suffixes are sorted; a match and its continuation must fit within it."""

LARGEST_ID = 2**31 - 1
MOST_TOKENS = 2**31 - 1

DAMAGED = "a damaged datastore: build it again"

Ids = NDArray[np.int32]


class Datastore:
    """Texts that can be searched for any string of up to `SORTED_TOKENS` tokens in logarithmic time.

    The file holds the tokens of all texts, each text followed by `END`, and their places sorted by what
    follows (a suffix array, sorted by `SORTED_TOKENS` tokens): four bytes per token and four per place. It
    is mapped into memory, which holds only the pages that are accessed.

    Args:
        path: path of a file written by `build`.
        vocab_size: the target's vocabulary size, to refuse a larger one; None to skip the check.
        tokenizer: digest of the target's tokenizer (`treespec.draft.state.tokenizer_digest`); empty to skip
            the check.

    Raises:
        Unreadable: if there is no such file, it is truncated, damaged or of another version, or it was made
            with another tokenizer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vocab_size: int | None = None,
        tokenizer: str = "",
    ) -> None:
        self.path = Path(path)
        library()  # compiled now, not while a step is timed
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
            path: path of the file; an existing file is replaced once the new one is complete.
            texts: token ids of each text; empty texts are left out.
            vocab_size: vocabulary size of the tokenizer.
            tokenizer: digest of the tokenizer (`treespec.draft.state.tokenizer_digest`), if known; configs
                refuse a datastore without it.

        Raises:
            InvalidArgument: if a text is not a row of token ids of the vocabulary, or there is no text.
            OSError: if the file cannot be written.
        """
        vocab_size = integer("vocab_size", vocab_size, least=1, most=LARGEST_ID)
        rows: list[Ids] = []
        for i, text in enumerate(texts):
            ids = plain_tokens(f"texts[{i}]", text, vocab_size)
            if ids:
                rows.append(np.array([*ids, END], dtype="<i4"))
        if not rows:
            raise InvalidArgument("texts has no token: a datastore needs at least one text")
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
        """The range of indices in `places` whose places are where the string begins.

        Args:
            string: at most `SORTED_TOKENS` tokens.
        """
        wanted = list(string)
        first = self._first(wanted, beyond=False)
        return range(first, self._first(wanted, beyond=True, low=first))

    def longest(self, ending: Sequence[int], shortest: int) -> tuple[int, range]:
        """The longest suffix of `ending` that occurs in a text, and where.

        If a string occurs in a text, its suffixes do too, so the length is found by bisection.

        Args:
            ending: at most `SORTED_TOKENS` tokens.
            shortest: minimum length of the suffix, at least 1.

        Returns:
            The length of the suffix and its range as returned by `find`; 0 and an empty range if there is
            none.
        """
        if library() is not None:
            return longest(self.tokens, self.places, ending, shortest)
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
        """Index of the first suffix that does not sort before the string.

        With `beyond`, index of the first suffix that sorts after all suffixes beginning with the string.
        """
        tokens, places, high = self.tokens, self.places, len(self.places)
        while low < high:
            middle = (low + high) // 2
            place = int(places[middle])
            prefix = tokens[place : place + len(string)].tolist()
            if prefix < string or (beyond and prefix == string):
                low = middle + 1
            else:
                high = middle
        return low


def suffix_array(tokens: Ids, sorted_by: int) -> Ids:
    """The places of a text, sorted by their next `sorted_by` tokens.

    Prefix doubling (Manber and Myers 1990): ranks by 1, 2, 4 ... tokens, each computed from the previous
    ranks by sorting pairs. Places that compare equal stay in the order of the text.

    `tokens`: ids of at least -1. `sorted_by`: number of tokens to compare, rounded up to a power of two.
    """
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    order, compared = np.argsort(rank, kind="stable"), 1
    while compared < sorted_by and rank[order[-1]] + 1 < len(tokens):
        pairs = rank * (len(tokens) + 1)
        pairs[:-compared] += rank[compared:] + 1  # the end of the text sorts before any token
        order = np.argsort(pairs, kind="stable")
        sorted_pairs = pairs[order]
        rank[order] = np.concatenate([[0], np.cumsum(sorted_pairs[1:] != sorted_pairs[:-1])])
        compared *= 2
    return order.astype("<i4")


def _header(name: str, file: IO[bytes]) -> dict[str, Any]:
    """The header of a file, checked to be complete and of the supported version."""
    size = os.fstat(file.fileno()).st_size
    try:
        header = parse_json(file.read(HEAD_BYTES))
    except Unreadable:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Unreadable(f"{name}: not a datastore: make one with `treespec datastore build`")
    version = header.get("version")
    if type(version) is not int or version != VERSION:  # `true` equals 1
        raise Unreadable(
            f"{name}: a datastore of version {version}, but this treespec reads version "
            f"{VERSION}: install a newer treespec, or build it again"
        )
    count = header.get("tokens")
    texts = header.get("texts")
    has_counts = type(count) is int and type(texts) is int and 1 <= texts <= count
    if not has_counts or header.get("sorted_by") != SORTED_TOKENS:
        raise Unreadable(f"{name}: {DAMAGED}")
    if size != HEAD_BYTES + 8 * count:
        raise Unreadable(
            f"{name}: {size:,} bytes, but a datastore of {count:,} tokens has {HEAD_BYTES + 8 * count:,}: "
            "it was truncated or changed; build it again"
        )
    return header


def _write(path: Path, header: Mapping[str, Any], tokens: Ids, places: Ids) -> None:
    def fill(file: IO[bytes]) -> None:
        file.write(json.dumps(header).encode().ljust(HEAD_BYTES - 1) + b"\n")
        file.write(tokens.data)  # `tofile` hides why a write failed
        file.write(places.data)

    write_whole(path, fill)
