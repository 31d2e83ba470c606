"""Tables with two vocabularies: the draft's tokens are strings of other lengths and have other ids."""

from collections.abc import Sequence
from functools import cache

import torch

from treespec.draft.cascade import DraftsBelow
from treespec.draft.strings import StringDrafter
from treespec.models.codec import Codec
from treespec.models.shared_tokens import SharedTokens
from treespec.models.some_tokens import Intersection
from treespec.testing import TabularModel, random_table

TARGET, DRAFT = ("a", "b", "ab"), ("b", "bb", "a", "ba")
"""Only "a" and "b" are shared; the target's "ab" is two tokens for the draft."""


def codec(pieces: Sequence[str]) -> Codec:
    """Greedy splitting, the longest piece first."""
    by_length = sorted(pieces, key=len, reverse=True)

    @cache
    def encode(text: str) -> tuple[list[int], list[int]]:
        ids, starts, at = [], [], 0
        while at < len(text):
            piece = next((piece for piece in by_length if text.startswith(piece, at)), None)
            if piece is not None:  # other characters have no ids
                ids.append(pieces.index(piece))
                starts.append(at)
            at += len(piece or " ")
        return ids, starts

    return Codec(lambda ids: "".join(pieces[i] for i in ids), encode)


TARGET_CODEC, DRAFT_CODEC = codec(TARGET), codec(DRAFT)

SHARED = SharedTokens(
    target_ids=torch.tensor([0, 1]),
    draft_ids=torch.tensor([2, 0]),
    vocab_size=3,
    pieces=((2,), (0,), (2, 0)).__getitem__,
    read=lambda tokens: DRAFT_CODEC.ids(TARGET_CODEC.decode(tokens)),
    target=TARGET_CODEC,
    draft=DRAFT_CODEC,
)


@cache
def draft_table(seed: int = 8) -> TabularModel:
    """A draft in its own four tokens."""
    return TabularModel(random_table(len(DRAFT), seed), len(DRAFT))


def strings(source: DraftsBelow, size: int, depth: int = 2) -> StringDrafter:
    """A source in the draft's four tokens, as strings."""
    return StringDrafter(source, TARGET_CODEC, DRAFT_CODEC, size=size, depth=depth)


def intersection() -> Intersection:
    """The draft in the target's ids."""
    return Intersection(draft_table(), SHARED)
