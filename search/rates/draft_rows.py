"""What a draft thinks at every position of texts, and off their path: what growths decide by."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.search.arguments import shown
from treespec.search.errors import InvalidTrace

__all__ = ["DraftRows"]

TOLERANCE = 1e-4
"""How far above 1 the children of a node may sum: they may come from float32 or half precision."""


@dataclass(frozen=True, eq=False)
class DraftRows:
    """The best children of many nodes of the draft's tree at every position of texts.

    At each position a tree is drafted after the text before it, whatever the text goes on with: the `width`
    most probable children of the root, of the `width` best of these, and so on (EAGLE-2's expansion,
    arXiv:2406.16858, nothing pruned). For each node that was run there is a row: how probable its best
    children are. Tokens are not kept: to know which child the text takes is enough. A node further down the
    text's own path is the first row of a later position, with all that hangs below it, so that a tree that
    is rooted at one position finds its branches at the positions where they leave the text.

    One row takes 4 bytes for each child and 8 besides; a position has 1 + (depth - 1) `width` rows.

    Args:
        offsets: `[T + 1]`; rows of position t are `offsets[t]` up to, not including, `offsets[t + 1]`. The
            first is that of the text itself.
        parents: `[R]`, the row of the node above, counted from the position's first; -1 for the first.
        ranks: `[R]`, which child of that node this one is, 0 the most probable; 0 for the first.
        probs: `[R, width]`, the draft's probabilities of the best children of each node, best first.
        text_ranks: `[T]`, which child of the first row the text goes on with; `width` if none of them.

    Raises:
        InvalidTrace: if the parts do not fit together, or hold what is no probability or rank.
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
            raise InvalidTrace("draft_rows.offsets must rise: each position has a row")
        if self.probs.ndim != 2 or not self.probs.shape[1]:
            raise InvalidTrace("draft_rows.probs must hold a line of probabilities for each row")
        wanted = {"parents": rows, "ranks": rows, "probs": rows, "text_ranks": len(offsets) - 1}
        for name, count in wanted.items():
            shape = getattr(self, name).shape
            if shape[0] != count or len(shape) != 1 + (name == "probs"):
                raise InvalidTrace(
                    f"draft_rows.{name} has shape {list(shape)}, but needs {count} entries"
                )
        place = np.arange(rows) - np.repeat(offsets[:-1], np.diff(offsets))
        above = np.where(
            place == 0, self.parents == -1, (self.parents >= 0) & (self.parents < place)
        )
        if not above.all():
            raise InvalidTrace(
                "draft_rows.parents must be -1 for the first row of a position and an earlier row else"
            )
        if not ((self.ranks >= 0) & (self.ranks < self.width)).all():
            raise InvalidTrace(f"draft_rows.ranks must be in 0..{self.width - 1}")
        if not ((self.text_ranks >= 0) & (self.text_ranks <= self.width)).all():
            raise InvalidTrace(f"draft_rows.text_ranks must be in 0..{self.width}")
        if not ((self.probs >= 0).all() and (self.probs.sum(axis=1) <= 1 + TOLERANCE).all()):
            raise InvalidTrace("draft_rows.probs holds what are no probabilities of siblings")

    @property
    def width(self) -> int:
        """Children of each row."""
        return self.probs.shape[1]

    @property
    def positions(self) -> int:
        """Positions of all texts together."""
        return len(self.text_ranks)

    @property
    def bytes(self) -> int:
        """How much a file holds, before it is packed."""
        return self.probs.size * 4 + len(self.parents) * 8 + self.positions * 12

    @cached_property
    def depth(self) -> int:
        """Levels that have rows, the first row's included: trees of up to so many edges are known."""
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
    """The values in an array of their own that nobody writes to."""
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
