"""Seeds that are hashes of what they are for, independent of the order of events and of lines in files."""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256


def seed_of(*parts: object) -> int:
    """A seed in 0 .. 2^62 - 1 that is a hash of these parts."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big") >> 2


def keys_of(texts: Iterable[Sequence[int]]) -> list[int]:
    """For each text the number that seeds its coins.

    It is a hash of its tokens and of how many equal texts precede it: a text keeps its coins wherever it
    stands among others, and equal texts have different coins.
    """
    before: Counter[tuple[int, ...]] = Counter()
    keys = []
    for text in texts:
        ids = tuple(map(int, text))
        keys.append(seed_of(ids, before[ids]))
        before[ids] += 1
    return keys
