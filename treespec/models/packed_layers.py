"""Products of few rows with large matrices, as passes over nodes of a tree ask them: weights are read once.

Between one row and a few dozen, libraries of matrix products are far from the speed at which weights can be
read. So compiled passes hold weights in an order of their own (`pack`), which a kernel of ours reads from
memory once, as one stream for each thread (`kernels.packed_linear`). With AVX-512, sums of 32 outputs and up to
12 rows stay in registers; more rows read a block of 32 outputs again, from the cache. Numbers in bfloat16
are multiplied as such where the processor can (AVX512-BF16, which takes the tiniest for 0). One copy serves
passes over any number of nodes: what plain decoding reads, trees read too.

Measured on two cores (AVX-512, bfloat16) in one run: passes of a target of 50M parameters behind 192 rows,
medians in ms. "Library" is oneDNN, and for one row the compiler's own code (`max_autotune_gemm`). Reading
the weights once took 2.1 to 3.5 ms meanwhile, by the bandwidth of a sum over 120 MB.

    | nodes | 1 | 2 | 4 | 8 | 16 | 22 | 32 | 64 |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | library | 4.0 | 7.5 | 6.3 | 7.7 | 11.3 | 12.5 | 14.5 | 24.2 |
    | here | 3.6 | 4.3 | 4.6 | 5.2 | 8.8 | 10.7 | 13.3 | 23.7 |
    | ratio | 1.11 | 1.75 | 1.36 | 1.48 | 1.28 | 1.17 | 1.09 | 1.02 |

Of the embedded draft the ratios are 1.05, 2.17, 1.97, 1.77, 1.42, 1.30, 1.17, 0.96.

With the library, weights of one row and of more are two copies, which drive each other out of the cache: of
the embedded target (36 MB beside a cache of 32 MiB) a pass over one node took 0.77 ms behind others like it
and 1.35 behind passes over four; here 0.80 and 0.95.

Linear layers that read the same rows, such as queries, keys and values, are one product (`TOGETHER`): each
asks for the product of all and takes its part, and the compiler computes once what is asked for repeatedly.

Not covered: float16 and float64, odd numbers of inputs in bfloat16, quantised weights, classes derived from
`nn.Linear` and layers whose `forward` was replaced, batched products of experts. These stay with the
library. Beyond 64 rows both take about the same time (measured to 1024; bfloat16: up to 13 % more here).
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

from treespec.models.kernels.packed_linear import BLOCK, can_pack, pack
from treespec.models.packed_weights import PackedWeights

__all__ = ["packed_linears"]

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that are given the same rows."""


@contextmanager
def packed_linears(model: nn.Module, copies: PackedWeights) -> Iterator[None]:
    """While it lasts, linear layers of a model that can be packed are products with packed weights.

    Other threads must not use the model, nor parts of it, meanwhile.

    Args:
        model: on the CPU.
        copies: that are known: those of a whole serve its parts. New ones are added.
    """
    changed: list[nn.Module] = []
    try:
        groups = _groups(model)
        for group, packed in zip(groups, _packed(groups, copies), strict=True):
            counts, bias, begin = [len(_matrix(layer)) for layer in group], _bias(group), 0
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


def _groups(model: nn.Module) -> list[list[nn.Module]]:
    """Layers that can be packed, those together that are one product."""
    alone = {layer: [layer] for layer in model.modules() if _fits(layer)}
    groups: list[list[nn.Module]] = []
    for parent in model.modules():
        for names in TOGETHER:
            some: list[Any] = [getattr(parent, name, None) for name in names]
            found = len({layer for layer in some if layer in alone}) == len(names)
            if found and len({_kind(layer) for layer in some}) == 1:
                groups.append([alone.pop(layer)[0] for layer in some])
    return [*groups, *alone.values()]


def _fits(layer: nn.Module) -> bool:
    if type(layer) not in (nn.Linear, Conv1D) or "forward" in layer.__dict__:
        return False
    if type(layer.weight) is not nn.Parameter or layer.weight.device.type != "cpu":
        return False  # quantised weights, say
    return can_pack(*_kind(layer))


def _kind(layer: nn.Module) -> tuple[int, torch.dtype]:
    matrix = _matrix(layer)
    return matrix.shape[1], matrix.dtype


def _matrix(layer: Any) -> Tensor:
    """Outputs by inputs. transformers' `Conv1D`, GPT-2's linear layer, holds them the other way."""
    weight = layer.weight.detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def _packed(groups: list[list[nn.Module]], copies: PackedWeights) -> list[Tensor]:
    """The matrices of groups: copies that are known, and new ones behind one another in large pages."""
    fresh = [pack(torch.cat([_matrix(layer) for layer in group])) for group in groups]
    there = [copies.known(one) for one in fresh]
    sizes = [one.nbytes if known is None else 0 for one, known in zip(fresh, there, strict=True)]
    places = _large_pages(sum(sizes)).split(sizes)
    kept: list[Tensor] = []
    for one, known, place in zip(fresh, there, places, strict=True):
        if known is None:
            known = copies.one_of(place.view(one.dtype).view(one.shape).copy_(one))
        kept.append(known)
    return kept


def _large_pages(size: int) -> Integer[Tensor, " bytes"]:
    """Memory in pages of 2 MiB where the system has such: it was read faster, by up to 14 %."""
    pages = mmap.mmap(-1, max(size, 1))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:size]


def _bias(group: list[Any]) -> Float[Tensor, " outputs"] | None:
    """Of all outputs of these layers and of those that pad them; None if none has one."""
    if all(layer.bias is None for layer in group):
        return None
    parts = [
        layer.weight.new_zeros(len(_matrix(layer))) if layer.bias is None else layer.bias.detach()
        for layer in group
    ]
    whole = torch.cat(parts).float()
    return F.pad(whole, (0, -len(whole) % BLOCK))


@no_type_check  # while tests check types, the compiler could not trace it
def _part(begin: int, count: int, size: int) -> Callable[..., Tensor]:
    """A layer's call, whose outputs are some of those of the packed matrix."""

    def forward(self: Any, input: Tensor) -> Tensor:
        x = input.contiguous()  # as the kernel reads it
        out = torch.ops.treespec.packed_linear(x, self.packed, self.packed_bias, size)
        return out if count == size else out[..., begin : begin + count]

    return forward
