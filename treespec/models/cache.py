"""The key/value cache: preallocated, written in place, and able to keep one path of a tree.

Rows 0 .. length - 1 are committed tokens; row `length + i` is node i of the tree in progress. A pass writes
its rows in place and reads all rows up to its last one as views. `keep` moves the accepted rows next to the
committed ones; the next pass overwrites the rows behind them.

Layers with equal shapes share one tensor, so `keep` costs a few operations however many layers there are.
Layers with a sliding window keep all rows: the window is in the mask.

A pass in fixed memory (`static_pass`) states in a tensor where its rows go, and reads all allocated rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from attention_masks.commit_rows import RowMover
from treespec.protocols import Decision

FIRST_CAPACITY = 256
"""Rows allocated at first, unless more are needed."""


def cache_argument(model: nn.Module) -> str:
    """Name of the argument of a forward method that takes the cache, of a model or of its attention.

    transformers 5.24 renamed `past_key_values` to `cache` and will drop the old name in 5.40; models with
    code of their own may have either.
    """
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


class LayerShape(NamedTuple):
    """Shape, dtype and device of the rows of one layer, without their number."""

    batch: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


class TreeCache(Cache):
    """A cache whose last rows are the nodes of a tree.

    `layout`: the shape of each layer, None for layers that store nothing; the `layout` of a cache after a
    pass. Without it, layers are discovered during the first pass, and each layer gets tensors of its own.
    """

    def __init__(self, layout: Sequence[LayerShape | None] = ()) -> None:
        super().__init__(layers=[])
        self.length = 0
        """Number of committed rows."""
        self.start = self.end = 0
        self.least = 0
        """Least capacity of an allocation; the capacity doubles when more is needed."""
        self.slots: Int[Tensor, " T"] | None = None
        self._ahead: Decision | None = None
        self._capacity = 0
        self._pools: list[_Pool] = []
        layers = [TreeLayer(self) for _ in layout]
        self.layers = [*layers]
        for shape in dict.fromkeys(layout):
            if shape is not None:
                members = [
                    layer for layer, stored in zip(layers, layout, strict=True) if stored == shape
                ]
                self._pools.append(_Pool(shape, members))

    @property
    def layout(self) -> tuple[LayerShape | None, ...]:
        """The shape of each layer seen so far."""
        shapes = {id(layer): pool.shape for pool in self._pools for layer in pool.layers}
        return tuple(shapes.get(id(layer)) for layer in self.layers)

    @property
    def capacity(self) -> int:
        """Number of rows that memory is allocated for."""
        return self._capacity

    @property
    def memory(self) -> tuple[int, ...]:
        """Capacity and addresses of the rows; changes whenever the rows move to other memory."""
        tensors = (rows for pool in self._pools for rows in (pool.keys, pool.values))
        return (self._capacity, *(rows.data_ptr() for rows in tensors if rows is not None))

    @contextmanager
    def static(self, slots: Int[Tensor, "T"]) -> Iterator[None]:
        """Context in which passes write their rows to the given slots and read all allocated rows.

        Inside it, the cache returns no number that changes from pass to pass: it reports `capacity` rows to
        the layers, as if the rows of the pass were the last.

        `slots`: distinct indices below `capacity`, on the device of the rows.
        """
        self.slots = slots
        try:
            yield
        finally:
            self.slots = None

    def begin(self, first: int, count: int) -> None:
        """Set which tree rows the next pass writes, and make room for them.

        `first`: index of the first node; all nodes before it must have been written.
        """
        self._ahead = None  # what it moved may be overwritten
        self.start = self.length + first
        self.end = self.start + count
        self.reserve(self.end, used=self.start)

    def capacity_for(self, rows: int) -> int:
        """The capacity after room was made for `rows` rows."""
        rows = max(rows, self.least)
        if rows <= self._capacity:
            return self._capacity
        return max(2 * self._capacity, rows, FIRST_CAPACITY)

    def reserve(self, rows: int, used: int) -> None:
        """Make room for `rows` rows, and for at least `least`."""
        capacity = self.capacity_for(rows)
        if capacity > self._capacity:
            self._capacity = capacity
            for pool in self._pools:
                pool.grow(self._capacity, used=used)

    def update(
        self,
        key_states: Float[Tensor, "B Hkv T D"],
        value_states: Float[Tensor, "B Hkv T E"],
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "B Hkv S D"], Float[Tensor, "B Hkv S E"]]:
        while len(self.layers) <= layer_idx:
            self.layers.append(TreeLayer(self))
        layer: Any = self.layers[layer_idx]
        return layer.update(key_states, value_states)

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, in this order, and forget all other tree rows.

        `nodes`: strictly increasing node indices. Leading rows that are already in place (`nodes[i] == i`)
        are not moved.
        """
        in_place = next((i for i, node in enumerate(nodes) if node != i), len(nodes))
        moved, self._ahead = self._ahead is not None and self._ahead.stands, None
        if in_place < len(nodes) and not moved:
            for pool in self._pools:
                pool.move([self.length + node for node in nodes[in_place:]], self.length + in_place)
        self.length += len(nodes)
        self.start = self.end = self.length

    def keep_ahead(self, kept: Int[Tensor, "N D"], decision: Decision) -> None:
        """Move the rows that a decision on the device keeps, before the host knows it; `keep` follows.

        Args:
            kept: for each node that can be the last of the path, what `keep` will get, -1 behind it.
            decision: nothing moves, neither here nor on the device, if it will not stand.
        """
        refused, node = decision.out[:1], decision.out[1:2]
        rows = kept.index_select(0, node)[0]
        source = torch.where((refused == 0) & (rows >= 0), rows + self.length, -1)
        for pool in self._pools:
            pool.move_ahead(source, self.length)
        self._ahead = decision

    def reset(self) -> None:
        self._ahead = None
        self.length = self.start = self.end = 0

    def release(self) -> None:
        """Forget all rows and give their memory back; the next pass allocates it anew."""
        self.reset()
        self._capacity = 0
        for pool in self._pools:
            pool.release()

    def adopt(self, layer: "TreeLayer", shape: LayerShape) -> None:
        """Allocate tensors for a layer that is not in the layout."""
        self._pools.append(_Pool(shape, [layer]))
        self._pools[-1].grow(self._capacity, used=0)


class TreeLayer(CacheLayerMixin):
    """One layer of a `TreeCache`: `keys` and `values` are `[B, Hkv, capacity, D]`."""

    is_sliding = False

    def __init__(self, cache: TreeCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, kv_heads, _, key_dim = key_states.shape
        self._cache.adopt(
            self,
            LayerShape(
                batch,
                kv_heads,
                key_dim,
                value_states.shape[-1],
                key_states.dtype,
                key_states.device,
            ),
        )

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of this pass; return views of all rows up to the last one written."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        if (slots := self._cache.slots) is not None:
            keys.index_copy_(2, slots, key_states)
            values.index_copy_(2, slots, value_states)
            return keys, values
        start, end = self._cache.start, self._cache.end
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that a pass over `query_length` tokens reads, and the offset of the first."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        slots = self._cache.slots
        return self._cache.start if slots is None else self._cache.capacity - len(slots)

    def get_max_length(self) -> int:
        return -1


class _Pool:
    """Memory of all layers of one shape: `[L, B, Hkv, capacity, D]` for keys and for values."""

    def __init__(self, shape: LayerShape, layers: Sequence[TreeLayer]) -> None:
        self.shape, self.layers = shape, layers
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self._mover: RowMover | None = None

    def grow(self, capacity: int, used: int) -> None:
        """Move to larger tensors and copy the first `used` rows."""
        self.keys = keys = self._larger(self.keys, self.shape.key_dim, capacity, used)
        self.values = values = self._larger(self.values, self.shape.value_dim, capacity, used)
        for i, layer in enumerate(self.layers):
            layer.keys, layer.values = keys[i], values[i]
            layer.is_initialized = True
        self._mover = RowMover(keys, values)

    def release(self) -> None:
        """Give the memory back."""
        self.keys = self.values = self._mover = None
        for layer in self.layers:
            layer.keys = layer.values = None

    def move(self, sources: Sequence[int], target: int) -> None:
        """Copy rows `sources` to target, target + 1, ...; all are read before any is written."""
        if self._mover is not None:
            self._mover(sources, target)

    def move_ahead(self, sources: Int[Tensor, " D"], target: int) -> None:
        """As `move`, with rows that only the device knows; those at the end are -1 and stay."""
        if self._mover is not None:
            # Only on a CPU, where this reads numbers, are sources checked, and so -1 refused.
            self._mover(sources[sources >= 0] if sources.is_cpu else sources, target)

    def _larger(self, old: Tensor | None, dim: int, capacity: int, used: int) -> Tensor:
        shape = (len(self.layers), self.shape.batch, self.shape.kv_heads, capacity, dim)
        # Compiled passes may read unwritten rows, which the mask hides; it cannot hide NaN, so fill zeros.
        with torch.inference_mode(False):  # compiled layers are for tensors of one mode
            new = torch.zeros(shape, dtype=self.shape.dtype, device=self.shape.device)
        if old is not None and used:
            new[:, :, :, :used] = old[:, :, :, :used]
        return new
