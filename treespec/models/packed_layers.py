"""Products of few rows with large matrices, as passes over nodes of a tree ask them: weights are read once.

Between one row and a few dozen, libraries of matrix products are far from the speed at which weights can be
read. So compiled passes hold weights in an order of their own (`pack`), which a kernel of ours reads from
memory once, one stream for each thread, asked for 16 KiB ahead (`kernels/packed_linear.cpp`). With AVX-512,
sums of 32 outputs and up to 12 rows stay in registers; more rows read a block of 32 outputs again, from the
cache. Numbers in bfloat16 are widened to float32, which on Intel's processors is up to 1.6 times as fast as
multiplying pairs of them (AVX512-BF16); on AMD's, pairs are multiplied, where the tiniest count as 0. One
copy serves passes over any number of nodes: what plain decoding reads, trees read too.

Measured on two cores of an Intel Xeon (AVX-512, no AMX) in one run: passes behind 192 rows, medians in ms.
"Library" is oneDNN. Reading the weights of 50M parameters once takes 2.0 ms at best.

    | nodes | 1 | 2 | 4 | 8 | 16 | 22 | 32 | 64 |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | 50M, bfloat16, library | 6.90 | 7.52 | 8.26 | 10.84 | 15.37 | 19.18 | 25.72 | 46.78 |
    | 50M, bfloat16, here | 4.55 | 4.95 | 5.42 | 5.97 | 9.14 | 10.79 | 15.02 | 27.86 |
    | 9M, float32, library | 2.28 | 2.75 | 3.10 | 3.46 | 4.09 | 4.61 | 5.30 | 8.27 |
    | 9M, float32, here | 1.40 | 1.49 | 1.71 | 1.83 | 2.42 | 2.84 | 3.66 | 6.25 |
    | draft, bfloat16, library | 0.58 | 0.58 | 0.62 | 0.69 | 0.82 | 0.91 | 1.05 | 1.55 |
    | draft, bfloat16, here | 0.22 | 0.23 | 0.25 | 0.28 | 0.38 | 0.45 | 0.56 | 0.95 |

In that table weights were asked for 4 KiB ahead, which was worth a factor of 1.4 for one row and 1.7 for 4
to 12; 16 KiB, in the second cache, make 1 to 4 rows faster again by up to 1.4. On two cores of an AMD EPYC,
before weights were asked for ahead, here took 0.6 to 0.9 of the library's time up to 22 nodes and as much
at 64. On two cores of an AMD EPYC with AVX2 alone (9M, float32), compiled passes over 1, 2, 4, 8, 16 and 32
nodes took 2.4, 2.8, 3.3, 4.6, 6.7 and 9.4 ms, eager ones 11 to 21 ms.

With the library, weights of one row and of more are two copies, which drive each other out of the cache: of
the embedded target (36 MB beside a cache of 32 MiB) a pass over one node took 0.77 ms behind others like it
and 1.35 behind passes over four; here 0.80 and 0.95.

Linear layers that read the same rows, such as queries, keys and values, are one product (`TOGETHER`): each
asks for the product of all and takes its part, and the compiler computes once what is asked for repeatedly.

Not covered: float16 and float64, odd numbers of inputs in bfloat16, quantised weights, classes derived from
`nn.Linear` and layers whose `forward` was replaced, batched products of experts. These stay with the
library. AMX tiles are not used: where a processor has them, the library may be faster for many rows (not
measured). On the EPYC both took about the same time beyond 64 rows (measured to 1024).
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

from treespec.kernels.packed_linear import BLOCK, can_pack, pack
from treespec.models.packed_weights import PackedWeights

__all__ = ["large_pages", "packed_linears"]

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
            complete = len({layer for layer in some if layer in alone}) == len(names)
            if complete and len({_kind(layer) for layer in some}) == 1:
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
    places = large_pages(sum(sizes)).split(sizes)
    kept: list[Tensor] = []
    for one, known, place in zip(fresh, there, places, strict=True):
        if known is None:
            known = copies.one_of(place.view(one.dtype).view(one.shape).copy_(one))
        kept.append(known)
    return kept


def large_pages(size: int) -> Integer[Tensor, " bytes"]:
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
