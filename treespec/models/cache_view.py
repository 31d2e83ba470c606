"""The committed rows of another cache, with temporary tree rows behind them.

The first layers of a model, run by themselves, store the same rows as within the model. A drafter made of
these layers needs no rows of its own for committed tokens: it reads the target's rows and writes the rows
of its drafts behind them, where the target's next pass overwrites them.
"""

from collections.abc import Sequence
from typing import Any

from treespec.errors import InvalidTree
from treespec.models.cache import LayerShape, TreeCache, TreeLayer


class CacheView(TreeCache):
    """Some layers of another cache; `keep` and `reset` do not change the committed rows of that cache.

    `layout`: for each layer of that cache its shape, or None for layers that are not read.
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
        return self._whole.length

    @length.setter
    def length(self, rows: int) -> None:
        """Ignored: only the other cache commits rows."""

    @property
    def capacity(self) -> int:
        return self._whole.capacity

    @property
    def memory(self) -> tuple[int, ...]:
        return self._whole.memory

    def begin(self, first: int, count: int) -> None:
        """Set which tree rows the next pass writes, and make room for them in the other cache."""
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
                view: Any = self.layers[i]
                source: Any = self._whole.layers[i]
                view.keys, view.values, view.is_initialized = source.keys, source.values, True

    def keep(self, nodes: Sequence[int]) -> None:
        """Forget all tree rows; only the other cache commits rows."""
        self.start = self.end = self._whole.length

    def reset(self) -> None:
        self.keep(())

    def release(self) -> None:
        """Hold the memory of the other cache no longer."""
        self._seen = ()
        every: list[Any] = [*self.layers]
        for layer in every:
            layer.keys = layer.values = None
