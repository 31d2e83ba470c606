"""The draft's probabilities at every position of texts and off their path, which growths decide by."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.search.arguments import shown
from treespec.search.errors import InvalidTrace

__all__ = ["DraftRows"]

TOLERANCE = 1e-4
"""How far above 1 the probabilities of siblings may sum: they may come from float32 or half precision."""


@dataclass(frozen=True, eq=False)
class DraftRows:
    """The most probable children of many nodes of the draft's tree at every position of texts.

    At each position, a tree is drafted after the text before it, regardless of how the text continues: the
    `width` most probable children of the root, those of the `width` best of these, and so on (EAGLE-2's
    expansion, arXiv:2406.16858, without pruning). Each node that was run has a row with the probabilities
    of its best children. Tokens are not stored: it suffices to know which child the text takes. A node
    further along the text's own path is the first row of a later position, with its whole subtree, so a
    tree rooted at one position finds its branches at the positions where they leave the text.

    A row takes 4 bytes per child and 8 more; a position has 1 + (depth - 1) `width` rows.

    Args:
        offsets: `[T + 1]`; rows of position t are `offsets[t]` up to, not including, `offsets[t + 1]`. The
            first of them belongs to the text itself.
        parents: `[R]`, the parent's row, counted from the position's first row; -1 for the first.
        ranks: `[R]`, rank of the node among its siblings, 0 the most probable; 0 for the first row.
        probs: `[R, width]`, the draft's probabilities of the best children of each node, best first.
        text_ranks: `[T]`, rank of the child of the first row that the text takes; `width` if it takes none.

    Raises:
        InvalidTrace: if the parts are inconsistent, or hold invalid probabilities or ranks.
    """

    offsets: Int[np.ndarray, "T_1"]
    parents: Int[np.ndarray, "R"]
    ranks: Int[np.ndarray, "R"]
    probs: Float[np.ndarray, "R width"]
    text_ranks: Int[np.ndarray, "T"]

    def __post_init__(self) -> None:
        """Copy and check all arrays."""
        for name in ("offsets", "parents", "ranks", "text_ranks"):
            object.__setattr__(self, name, _array(f"draft_rows.{name}", getattr(self, name), "iu"))
        object.__setattr__(self, "probs", _array("draft_rows.probs", self.probs, "f"))
        offsets, rows = self.offsets, len(self.parents)
        if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != rows:
            raise InvalidTrace(f"draft_rows.offsets must rise from 0 to the number of rows, {rows}")
        if (np.diff(offsets) < 1).any():
            raise InvalidTrace("draft_rows.offsets must rise: each position has at least one row")
        if self.probs.ndim != 2 or not self.probs.shape[1]:
            raise InvalidTrace("draft_rows.probs must hold a line of probabilities for each row")
        lengths = {"parents": rows, "ranks": rows, "probs": rows, "text_ranks": len(offsets) - 1}
        for name, count in lengths.items():
            shape = getattr(self, name).shape
            if shape[0] != count or len(shape) != 1 + (name == "probs"):
                raise InvalidTrace(
                    f"draft_rows.{name} has shape {list(shape)}, but needs {count} entries"
                )
        place = np.arange(rows) - np.repeat(offsets[:-1], np.diff(offsets))
        valid = np.where(
            place == 0, self.parents == -1, (self.parents >= 0) & (self.parents < place)
        )
        if not valid.all():
            raise InvalidTrace(
                "draft_rows.parents must be -1 for the first row of a position and an earlier row for the "
                "others"
            )
        if not ((self.ranks >= 0) & (self.ranks < self.width)).all():
            raise InvalidTrace(f"draft_rows.ranks must be in 0..{self.width - 1}")
        if not ((self.text_ranks >= 0) & (self.text_ranks <= self.width)).all():
            raise InvalidTrace(f"draft_rows.text_ranks must be in 0..{self.width}")
        if not ((self.probs >= 0).all() and (self.probs.sum(axis=1) <= 1 + TOLERANCE).all()):
            raise InvalidTrace(
                "draft_rows.probs must hold probabilities in [0, 1] that sum to at most 1 among siblings"
            )

    @property
    def width(self) -> int:
        """Children of each row."""
        return self.probs.shape[1]

    @property
    def positions(self) -> int:
        """Number of positions of all texts together."""
        return len(self.text_ranks)

    @property
    def bytes(self) -> int:
        """Bytes in a file, before compression."""
        return self.probs.size * 4 + len(self.parents) * 8 + self.positions * 12

    @cached_property
    def depth(self) -> int:
        """Number of levels with rows, the first row's included: the edges of the deepest known tree."""
        depths = np.ones(len(self.parents), dtype=np.int64)
        starts = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        for row in np.flatnonzero(self.parents >= 0):
            depths[row] = depths[starts[row] + self.parents[row]] + 1
        return int(depths.max())

    @cached_property
    def children(self) -> Int[np.ndarray, "R width"]:
        """The row of each child, -1 where there is none."""
        children = np.full(self.probs.shape, -1, dtype=np.int64)
        starts = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        inner = self.parents >= 0
        places = (starts + self.parents)[inner], self.ranks[inner]
        children[places] = np.flatnonzero(inner)
        return children


def _array(name: str, values: Any, kinds: str) -> np.ndarray:
    """A read-only copy of the values as an array."""
    try:
        given = np.asarray(values)
        if given.dtype.kind not in kinds or not given.ndim:
            raise TypeError(given.dtype)
        array = np.array(given, dtype=np.float64 if kinds == "f" else np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        what = "numbers" if kinds == "f" else "integers"
        raise InvalidTrace(f"{name} = {shown(values)}, but must hold {what}") from error
    array.flags.writeable = False
    return array
