"""The draft's probabilities at every position of texts and off their path, which growths decide by."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.checks import shown
from treespec.search.errors import InvalidTrace

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
    tree rooted at one position finds its branches at the positions where they leave the text. Rows of a
    trained head depend on the position at which its tree is rooted, and serve trees rooted there only
    (`Trace.path_ranks`).

    A row takes 4 bytes per child and 8 more; a position has 1 + (depth - 1) `width` rows.

    Args:
        offsets: `[T + 1]`; rows of position t are `offsets[t]` up to, not including, `offsets[t + 1]`. The
            first of them belongs to the text itself.
        parents: `[R]`, the parent's row, counted from the position's first row; -1 for the first.
        ranks: `[R]`, rank of the node among its siblings, 0 the most probable; 0 for the first row. -1 for
            the row of all siblings, of a draft with one row for each depth.
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
        """Copy the arrays, and check that they fit together."""
        for name in ("offsets", "parents", "ranks", "text_ranks"):
            numbers = whole_numbers(f"draft_rows.{name}", getattr(self, name))
            object.__setattr__(self, name, numbers)
        object.__setattr__(self, "probs", numbers_of("draft_rows.probs", self.probs))
        offsets, rows = self.offsets, len(self.parents)
        wrong = [name for name in ("ranks", "probs") if len(getattr(self, name)) != rows]
        rises = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == rows
        if not rises or (np.diff(offsets) < 1).any():
            wrong.append("offsets")
        if self.probs.ndim != 2 or not self.probs.size:
            wrong.append("probs")
        if len(self.text_ranks) != len(offsets) - 1:
            wrong.append("text_ranks")
        if not wrong:
            place = np.arange(rows) - self._starts
            parents, first = self.parents, place == 0
            valid = {
                "parents": np.where(first, parents == -1, (parents >= 0) & (parents < place)),
                "ranks": (self.ranks >= np.where(first, 0, -1)) & (self.ranks < self.width),
                "text_ranks": (self.text_ranks >= 0) & (self.text_ranks <= self.width),
                "probs": (self.probs >= 0).all(axis=1) & (self.probs.sum(axis=1) <= 1 + TOLERANCE),
            }
            wrong = [name for name, holds in valid.items() if not holds.all()]
        if wrong:
            raise InvalidTrace(
                f"draft_rows.{wrong[0]} does not fit the other arrays: record the trace again"
            )

    @property
    def width(self) -> int:
        """Children of each row."""
        return self.probs.shape[1]

    @cached_property
    def by_depth(self) -> bool:
        """Whether each position has one row for each depth, whatever the node."""
        return bool((self.ranks[self.parents >= 0] == -1).all())

    @property
    def positions(self) -> int:
        """Number of positions of all texts together."""
        return len(self.text_ranks)

    @cached_property
    def _starts(self) -> Int[np.ndarray, "R"]:
        """The first row of the position that each row belongs to."""
        return np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @cached_property
    def depth(self) -> int:
        """Number of levels with rows, the first row's included: the edges of the deepest known tree."""
        depths = np.ones(len(self.parents), dtype=np.int64)
        for row in np.flatnonzero(self.parents >= 0):
            depths[row] = depths[self._starts[row] + self.parents[row]] + 1
        return int(depths.max())

    @cached_property
    def children(self) -> Int[np.ndarray, "R width"]:
        """The row of each child, -1 where there is none."""
        children = np.full(self.probs.shape, -1, dtype=np.int64)
        inner = self.parents >= 0
        places = (self._starts + self.parents)[inner], self.ranks[inner]
        children[places] = np.flatnonzero(inner)
        for_all = inner & (self.ranks < 0)
        children[(self._starts + self.parents)[for_all]] = np.flatnonzero(for_all)[:, None]
        return children


def whole_numbers(name: str, values: Any, axes: int = 1) -> Int[np.ndarray, "*shape"]:
    """A read-only row of integers, or several rows."""
    array = np.asarray(values)
    if array.ndim != axes or (array.size and array.dtype.kind not in "iu"):
        raise InvalidTrace(
            f"{name} = {shown(values)}, but must be {'a row' if axes == 1 else 'rows'} of integers"
        )
    return _copied(array, np.int64)


def numbers_of(name: str, values: Any) -> Float[np.ndarray, "*shape"]:
    """A read-only array of numbers."""
    try:
        return _copied(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidTrace(f"{name} = {shown(values)}, but must be numbers in equal rows") from None


def _copied(values: Any, kind: type) -> np.ndarray:
    array = np.array(values, dtype=kind)
    array.flags.writeable = False
    return array
