"""The caches of several texts in one pass, in which their nodes stand one after the other.

Each text keeps a cache of its own: lengths differ without padding, a text that ends frees its rows, and
one that grows moves no other. The pass reads the rows of all texts, one text after the other; what each
node may attend to among them is decided by the attention (`TreeAttention`) or the mask (`OwnMask.trees`).
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from treespec.models.cache import TreeCache


class JoinedCache(Cache):
    """Writes the rows of each text to its own cache; returns the rows of all, text by text.

    Args:
        caches: the texts' caches, each begun (`TreeCache.begin`) for its nodes of this pass.
    """

    def __init__(self, caches: Sequence[TreeCache]) -> None:
        super().__init__(layers=[])
        self._caches = caches
        self._counts = [cache.end - cache.start for cache in caches]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of this pass; return all rows of all texts."""
        parts = zip(
            self._caches,
            key_states.split(self._counts, dim=2),
            value_states.split(self._counts, dim=2),
            strict=True,
        )
        rows = [cache.update(keys, values, layer_idx) for cache, keys, values in parts]
        keys, values = zip(*rows, strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of rows that were in the caches before this pass."""
        return sum(cache.start for cache in self._caches)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Number of rows that a pass reads, and the offset of the first."""
        return sum(cache.end for cache in self._caches), 0


def joined(caches: Sequence[TreeCache]) -> Cache:
    """One cache for a pass over the nodes of these: a single one is used as it is."""
    return caches[0] if len(caches) == 1 else JoinedCache(caches)


@no_type_check
class Unstored(CacheLayerMixin):
    """A layer of a cache that hands on the rows of the pass: the attention's kernel stores them."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: there is no memory."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1
