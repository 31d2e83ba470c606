"""Packed copies of weights, which all compiled graphs of one model share.

A graph that owns its weights (freezing) holds each matrix in the order in which its code reads it: in that
of our kernel (`kernels.packed_linear.pack`), or in the library's. The graphs of a part of the model
(`treespec.models.shortened`) would hold copies of the same matrices in the same order: each is looked up
among those that are there, before the code is loaded, and what is equal is given up.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

__all__ = ["PackedWeights"]


class PackedWeights:
    """The copies that graphs of a model, and of its parts, hold.

    Args:
        model: whose own weights are no copies.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[Any, list[weakref.ref[Tensor]]] = {}

    @property
    def bytes(self) -> int:
        """What the copies that are alive take."""
        alive = (one() for some in self._known.values() for one in some)
        return sum(one.numel() * one.element_size() for one in alive if one is not None)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """While it lasts, graphs that are compiled hold copies that are known instead of equal ones."""
        from torch._inductor.graph import GraphLowering

        write: Callable[..., Any] = GraphLowering.codegen_with_cpp_wrapper
        pointers = {
            weight.untyped_storage().data_ptr()
            for weight in (*self._model.parameters(), *self._model.buffers())
        }

        def written(graph: Any) -> Any:
            code = write(graph)
            for name, constant in graph.constants.items():
                if constant.is_mkldnn or constant.untyped_storage().data_ptr() not in pointers:
                    graph.constants[name] = self.one_of(constant)
            return code

        with patch.object(GraphLowering, "codegen_with_cpp_wrapper", written):
            yield

    def known(self, copy: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."] | None:
        """The copy that is known and equal; None if there is none."""
        alive = (one() for one in self._known.get(_kind(copy), []))
        return next((one for one in alive if one is not None and _equal(one, copy)), None)

    def one_of(self, copy: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The copy that is known and equal, or this one, known from now on."""
        if (known := self.known(copy)) is not None:
            return known
        like = self._known.setdefault(_kind(copy), [])
        like[:] = [*(one for one in like if one() is not None), weakref.ref(copy)]
        return copy


def _kind(copy: Tensor) -> Any:
    packed = copy.is_mkldnn
    return (copy.shape, copy.dtype, packed, None if packed else copy.stride())


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.is_mkldnn:  # whose numbers are read in the library's own order
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other)
