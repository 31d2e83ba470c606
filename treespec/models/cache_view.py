"""The committed rows of another cache, with tree rows behind them that nobody keeps.

The first layers of a model, run by themselves, store the rows that the model itself stores there. A drafter
made of them needs no rows of its own for committed tokens: it reads the target's, and writes those of its
drafts behind them, where the target's next pass writes over them.
"""

from collections.abc import Sequence
from typing import Any

from treespec.errors import InvalidTree
from treespec.models.cache import LayerShape, TreeCache, TreeLayer

__all__ = ["CacheView"]


class CacheView(TreeCache):
    """Some layers of another cache. What is kept or forgotten here is nothing to that cache.

    Args:
        whole: whose committed rows are read.
        layout: the layers that are read have a shape, others None; as many as the cache has, each of the
            shape that it has there.
    """

    def __init__(self, whole: TreeCache, layout: Sequence[LayerShape | None]) -> None:
        self._whole = whole
        super().__init__()
        self.layers = [TreeLayer(self) for _ in layout]
        self._read = [i for i, shape in enumerate(layout) if shape is not None]
        self._layout = tuple(layout)
        self._seen: tuple[int, ...] = ()

    @property
    def layout(self) -> tuple[LayerShape | None, ...]:
        """The shape of each layer, None for those that are not read."""
        return self._layout

    @property
    def length(self) -> int:
        """Number of committed rows."""
        return self._whole.length

    @length.setter
    def length(self, rows: int) -> None:
        """Only the whole commits rows."""

    @property
    def capacity(self) -> int:
        """Rows for which there is memory."""
        return self._whole.capacity

    @property
    def memory(self) -> tuple[int, ...]:
        """Where the rows are; changes whenever they move to other memory."""
        return self._whole.memory

    def begin(self, first: int, count: int) -> None:
        """Say which tree rows the next pass writes, and make room for them in the whole.

        Raises:
            InvalidTree: if the whole has a tree of which no path was kept yet: its rows would be lost.
        """
        if self._whole.end != self._whole.length:
            raise InvalidTree(
                "the target has a tree in its cache: commit its step before the next tree is drafted"
            )
        self.start = self._whole.length + first
        self.end = self.start + count
        self._whole.reserve(self.end, used=self.start)
        if self._seen != self.memory:
            self._seen = self.memory
            for i in self._read:
                mine: Any = self.layers[i]
                other: Any = self._whole.layers[i]
                mine.keys, mine.values, mine.is_initialized = other.keys, other.values, True

    def keep(self, nodes: Sequence[int]) -> None:
        """Forget all tree rows; only the whole commits some."""
        self.start = self.end = self._whole.length

    def reset(self) -> None:
        """Forget all tree rows."""
        self.keep(())
