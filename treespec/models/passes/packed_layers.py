"""Products of few rows with large matrices, as in passes over nodes of a tree: weights are read only once.

From one row to a few dozen rows, matrix product libraries are far slower than reading the weights requires.
So compiled passes hold weights in an order of their own (`pack`). Our kernel reads them from memory once,
one stream per thread, prefetched 16 KiB ahead (`kernels/packed_linear.cpp`). With AVX-512, the sums of 32
outputs and up to 12 rows stay in registers; for more rows, the kernel reads each block of 32 outputs again
from the cache. bfloat16 numbers are widened to float32, which on Intel processors is up to 1.6 times as
fast as multiplying pairs (AVX512-BF16); on AMD processors, pairs are multiplied, which treats denormal
numbers as 0. Passes over any number of nodes share one copy: trees read what plain decoding reads.

Passes after 192 rows took 0.4 to 0.8 of their time with oneDNN on two cores of an Intel Xeon (AVX-512, no
AMX), for 1 to 64 nodes and models of 1M to 50M parameters; on two cores of an AMD EPYC, 0.6 to 0.9 of it up
to 22 nodes, and the same at 64. The library keeps two copies of the weights, for one row and for more rows,
which evict each other from the cache.

Linear layers that read the same rows, such as queries, keys and values, are one product (`TOGETHER`): each
layer computes the product of all of them and takes its part, and the compiler removes the repetitions.

Not covered: float16 and float64, odd numbers of inputs in bfloat16, quantised weights, subclasses of
`nn.Linear`, layers whose `forward` was replaced, batched products of experts. These stay with the library.
AMX tiles are not used: on a processor that has them, the library may be faster for many rows (not
measured). On the EPYC both took about the same time beyond 64 rows (measured up to 1024).
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import MethodType
from typing import Any, no_type_check

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from treespec.kernels.packed_linear import BLOCK, can_pack, kernel_call, pack
from treespec.models.packed_weights import PackedWeights

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that read the same rows."""


@contextmanager
def packed_linears(model: nn.Module, copies: PackedWeights) -> Iterator[None]:
    """Context in which the linear layers of a model that can be packed use packed weights.

    Other threads must not use the model or its layers meanwhile.

    `copies`: known packed copies, which shortened models share with the full model. New ones are added.
    """
    changed: list[nn.Module] = []
    try:
        groups = _groups(model)
        for group, packed in zip(groups, _packed(groups, copies), strict=True):
            counts = [len(_matrix(layer)) for layer in group]
            bias = _bias(group)
            begin = 0
            for layer, count in zip(group, counts, strict=True):
                changed.append(layer)
                layer._buffers |= {"packed": packed, "packed_bias": bias}
                layer.forward = MethodType(_part(begin, count, sum(counts)), layer)
                begin += count
        yield
    finally:
        for layer in changed:
            for name in ("packed", "packed_bias"):
                layer._buffers.pop(name, None)
            layer.__dict__.pop("forward", None)


def linear_work(model: nn.Module) -> Callable[[int], Callable[[], None]]:
    """The products of a compiled pass alone, which take most of its time, without compiling the model.

    The result, given a number of rows, makes a function that multiplies so many rows by every matrix that
    can be packed, once.
    """
    matrices = [torch.cat([_matrix(layer) for layer in group]) for group in _groups(model)]
    packed = [(pack(matrix), matrix.shape) for matrix in matrices]

    def of_rows(rows: int) -> Callable[[], None]:
        calls = []
        for weight, (outputs, inputs) in packed:
            out = weight.new_empty(rows, outputs)
            calls.append(kernel_call(out, weight.new_ones(rows, inputs), weight, None))

        def work() -> None:
            for call in calls:
                call()

        return work

    return of_rows


def _groups(model: nn.Module) -> list[list[nn.Module]]:
    """Layers that can be packed, grouped by product."""
    ungrouped = {layer: [layer] for layer in model.modules() if _fits(layer)}
    groups: list[list[nn.Module]] = []
    for parent in model.modules():
        for names in TOGETHER:
            layers: list[Any] = [getattr(parent, name, None) for name in names]
            complete = len({layer for layer in layers if layer in ungrouped}) == len(names)
            if complete and len({_kind(layer) for layer in layers}) == 1:
                groups.append([ungrouped.pop(layer)[0] for layer in layers])
    return [*groups, *ungrouped.values()]


def _fits(layer: nn.Module) -> bool:
    if type(layer) not in (nn.Linear, Conv1D) or "forward" in layer.__dict__:
        return False
    if type(layer.weight) is not nn.Parameter or layer.weight.device.type != "cpu":
        return False  # for example quantised weights
    return can_pack(*_kind(layer))


def _kind(layer: nn.Module) -> tuple[int, torch.dtype]:
    matrix = _matrix(layer)
    return matrix.shape[1], matrix.dtype


def _matrix(layer: Any) -> Tensor:
    """The weight matrix, outputs x inputs. transformers' `Conv1D` (GPT-2) stores the transpose."""
    weight = layer.weight.detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def _packed(groups: list[list[nn.Module]], copies: PackedWeights) -> list[Tensor]:
    """The packed matrix of each group: known copies, and new copies side by side in large pages."""
    matrices = [pack(torch.cat([_matrix(layer) for layer in group])) for group in groups]
    known_copies = [copies.known(matrix) for matrix in matrices]
    sizes = [
        matrix.nbytes if known is None else 0
        for matrix, known in zip(matrices, known_copies, strict=True)
    ]
    places = large_pages(sum(sizes)).split(sizes)
    packed: list[Tensor] = []
    for matrix, known, place in zip(matrices, known_copies, places, strict=True):
        if known is None:
            known = copies.one_of(place.view(matrix.dtype).view(matrix.shape).copy_(matrix))
        packed.append(known)
    return packed


def large_pages(size: int) -> Integer[Tensor, " bytes"]:
    """Memory in pages of 2 MiB if the system has them: reading it was up to 14 % faster."""
    pages = mmap.mmap(-1, max(size, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:size]


def _bias(group: list[Any]) -> Float[Tensor, " outputs"] | None:
    """The bias of all packed outputs of a group, padding included; None if no layer has a bias."""
    if all(layer.bias is None for layer in group):
        return None
    biases = [
        layer.weight.new_zeros(len(_matrix(layer))) if layer.bias is None else layer.bias.detach()
        for layer in group
    ]
    bias = torch.cat(biases).float()
    return F.pad(bias, (0, -len(bias) % BLOCK))


@no_type_check  # the compiler cannot trace the type checks of the tests
def _part(begin: int, count: int, size: int) -> Callable[..., Tensor]:
    """The `forward` of a layer whose outputs are a part of those of the packed matrix."""

    def forward(self: Any, input: Tensor) -> Tensor:
        x = input.contiguous()  # as the kernel reads it
        out = torch.ops.treespec.packed_linear(x, self.packed, self.packed_bias, size)
        return out if count == size else out[..., begin : begin + count]

    return forward
