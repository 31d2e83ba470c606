"""A text that grows in one tokenizer's ids, followed in another's."""

from collections.abc import Sequence

from treespec.models.codec import CUT, Codec

OVERLAP = 12
"""Pieces before the new text that are split again with it."""


class TextFollower:
    """The text of a row of token ids that grows, and the ids of another tokenizer for it.

    New text is encoded together with the last pieces before it, and joined to the earlier ids where both
    splits agree; where they agree nowhere, the whole text is encoded. So the ids are those of the whole
    text, up to splits that look further back than the overlap.

    Args:
        source: of the ids that are given.
        codec: of the ids that are wanted.
    """

    def __init__(self, source: Codec, codec: Codec) -> None:
        self.source, self.codec = source, codec
        self.restart(())

    def restart(self, tokens: Sequence[int]) -> None:
        """Forget the text, and read these tokens."""
        self.tokens: list[int] = []
        self.text = ""
        """The text up to the last whole character."""
        self.ids: list[int] = []
        """The other tokenizer's ids of the text, after what it puts before every text."""
        self._starts: list[int] = []
        self._read = (0, 0)
        self.append(tokens)

    @property
    def whole(self) -> bool:
        """Whether the text ends where a token ends, so that drafts can follow it."""
        return self._read[1] == len(self.tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Read tokens that follow."""
        self.tokens += tokens
        begin, end = self._read
        # Decoded behind the tokens read last: some decoders change the beginning of a text.
        before = self.source.decode(self.tokens[begin:end])
        after = self.source.decode(self.tokens[begin:])
        if after.endswith(CUT):
            return
        self._read = end, len(self.tokens)
        self.text += after[len(before) :]
        self._split()

    def _split(self) -> None:
        opening = self.codec.opening
        kept = len(self._starts) - OVERLAP
        if kept > 0:
            cut = self._starts[kept]
            ids, starts = self.codec.encode(self.text[cut:])
            joint = self._joint(kept, cut, ids, starts)
            if joint is not None:
                old, new = joint
                self.ids = [*self.ids[: len(opening) + old], *ids[new:]]
                self._starts = [*self._starts[:old], *(cut + start for start in starts[new:])]
                return
        ids, self._starts = self.codec.encode(self.text)
        self.ids = [*opening, *ids] if ids else []

    def _joint(
        self, kept: int, cut: int, ids: Sequence[int], starts: Sequence[int]
    ) -> tuple[int, int] | None:
        """Where the old and the new split agree: on two pieces that begin at one character."""
        old_ids = self.ids[len(self.codec.opening) :]
        places = {start: i for i, start in enumerate(self._starts) if i > kept}
        for new in range(1, len(ids) - 1):
            old = places.get(cut + starts[new])
            if old is not None and list(old_ids[old : old + 2]) == list(ids[new : new + 2]):
                return old, new
        return None
