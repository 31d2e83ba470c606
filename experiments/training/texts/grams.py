"""Rows of n tokens, as 64-bit hashes: to find loops, leaks and how varied texts are."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Integer, UInt64

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, odd."""


def gram_hashes(ids: Sequence[int] | Integer[np.ndarray, "T"], n: int) -> UInt64[np.ndarray, "_"]:
    """A hash of each n tokens in a row: a polynomial in an odd number, modulo 2^64.

    Equal rows have equal hashes; different rows have equal ones about once in 2^64 pairs.
    """
    tokens = np.asarray(ids).astype(np.uint64)
    if len(tokens) < n:
        return np.zeros(0, dtype=np.uint64)
    with np.errstate(over="ignore"):
        # Neighbouring ids are scattered first, so that sums of small numbers do not meet.
        tokens = (tokens + np.uint64(1)) * _FACTOR
        tokens ^= tokens >> np.uint64(29)
        hashes = np.zeros(len(tokens) - n + 1, dtype=np.uint64)
        for i in range(n):
            hashes = hashes * _FACTOR + tokens[i : i + len(hashes)]
    return hashes


def most_repeats(ids: Sequence[int] | Integer[np.ndarray, "T"], n: int) -> int:
    """How often the most frequent n tokens in a row occur; 0 if the text is shorter."""
    counts = np.unique(gram_hashes(ids, n), return_counts=True)[1]
    return int(counts.max(initial=0))


def distinct_share(texts: Iterable[Integer[np.ndarray, "_"]], n: int) -> float:
    """Share of different n-grams among all of the texts (distinct-n, arXiv:1510.03055); 0 for none."""
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *(gram_hashes(t, n) for t in texts)])
    return len(np.unique(hashes)) / max(1, len(hashes))
