"""Packed copies of weights, which all compiled graphs of one model share.

A graph that owns its weights (freezing) holds each matrix in the order in which its code reads it: that of
our kernel (`kernels.packed_linear.pack`), or that of the library. The graphs of a shortened model
(`models.variants.shortened`) would hold further copies of the same matrices in the same order. So before
the code is loaded, each new copy is compared with the known ones and discarded if it equals one of them.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from treespec.models.quantised import stored


class PackedWeights:
    """The packed copies that graphs of a model and of its shortened versions hold.

    `model`: the model; its own weights do not count as copies.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[Any, list[weakref.ref[Tensor]]] = {}

    @property
    def bytes(self) -> int:
        """Memory of the copies that still exist."""
        copies = (reference() for references in self._known.values() for reference in references)
        return sum(copy.numel() * copy.element_size() for copy in copies if copy is not None)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context in which compiled graphs use known copies instead of equal new ones."""
        from torch._inductor.graph import GraphLowering

        original: Callable[..., Any] = GraphLowering.codegen_with_cpp_wrapper
        own_weights = {
            part.untyped_storage().data_ptr()
            for weight in (*self._model.parameters(), *self._model.buffers())
            for part in stored(weight)
        }

        def with_known_copies(graph: Any) -> Any:
            code = original(graph)
            for name, constant in graph.constants.items():
                if constant.is_mkldnn or constant.untyped_storage().data_ptr() not in own_weights:
                    graph.constants[name] = self.one_of(constant)
            return code

        with patch.object(GraphLowering, "codegen_with_cpp_wrapper", with_known_copies):
            yield

    def known(self, copy: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."] | None:
        """The known copy that equals this one; None if there is none."""
        candidates = (reference() for reference in self._known.get(_kind(copy), []))
        return next((c for c in candidates if c is not None and _equal(c, copy)), None)

    def one_of(self, copy: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The known copy that equals this one; else this one, which is known from then on."""
        if (known := self.known(copy)) is not None:
            return known
        references = self._known.setdefault(_kind(copy), [])
        references[:] = [*(ref for ref in references if ref() is not None), weakref.ref(copy)]
        return copy


def _kind(copy: Tensor) -> Any:
    packed = copy.is_mkldnn
    return (copy.shape, copy.dtype, packed, None if packed else copy.stride())


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.is_mkldnn:  # in the library's own order
        left, right = left.to_dense(), right.to_dense()
    return torch.equal(left, right)
