"""Products of few rows with large matrices, as passes over nodes of a tree ask them: weights are read once.

Between one row and a few dozen, libraries of matrix products are far from the speed at which weights can be
read. So compiled passes hold weights in an order of their own (`pack`), which a kernel of ours reads from
memory once, as one stream for each thread (`packed_linear.cpp`). With AVX-512, sums of 32 outputs and up to
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

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import MethodType
from typing import Any, no_type_check

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from treespec.errors import Unavailable, in_words
from treespec.models.packed_weights import PackedWeights

__all__ = ["SOURCE", "pack", "packed_linear", "packed_linears"]

SOURCE = Path(__file__).with_name("packed_linear.cpp")

BLOCK = 32
"""Outputs whose weights lie together."""

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that are given the same rows."""

FLAGS = ("-ffp-contract=fast",)
"""A product and a sum are one operation."""


def pack(weight: Float[Tensor, "N K"]) -> Float[Tensor, "blocks pairs 32 pair"]:
    """A matrix in the order in which the kernel reads it: 32 outputs together, of bfloat16 pairs of inputs.

    Outputs are padded to a multiple of 32 by zeros.

    Raises:
        ValueError: for other numbers than float32 and bfloat16, or an odd number of inputs in bfloat16.
    """
    size, inputs = weight.shape
    if not _can_pack(inputs, weight.dtype):
        raise ValueError(f"a matrix of {inputs} inputs in {weight.dtype} cannot be packed")
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    padded = F.pad(weight.detach(), (0, 0, 0, -size % BLOCK))
    return padded.reshape(-1, BLOCK, inputs // pair, pair).transpose(1, 2).contiguous()


@torch.library.custom_op("treespec::packed_linear", mutates_args=(), device_types="cpu")
def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None, size: int) -> Tensor:
    """Rows times a packed matrix, plus a bias. A row's result does not depend on the others.

    Args:
        x: rows `[..., K]`.
        packed: of `pack`, of the dtype of the rows.
        bias: of float32, one number for each packed output, those that pad included; None for none.
        size: number of outputs, without those that pad.

    Returns:
        `[..., size]`, of sums in float32. bfloat16 is rounded once.

    Raises:
        ValueError: if sizes or dtypes do not fit together.
    """
    blocks, pairs, _, pair = packed.shape
    fits = x.dtype == packed.dtype and x.shape[-1] == pairs * pair and 0 < size <= BLOCK * blocks
    if not fits or (
        bias is not None and (bias.dtype, len(bias)) != (torch.float32, BLOCK * blocks)
    ):
        raise ValueError(
            f"rows {tuple(x.shape)} in {x.dtype} cannot be multiplied by a packed matrix "
            f"{tuple(packed.shape)} in {packed.dtype} to {size} outputs"
        )
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], size)
    sizes = (x.numel() // x.shape[-1], x.shape[-1], size)
    pointers = (packed.data_ptr(), None if bias is None else bias.data_ptr(), x.data_ptr())
    _library().treespec_packed_linear(
        *map(ctypes.c_void_p, (*pointers, out.data_ptr())),
        *map(ctypes.c_int64, sizes),
        ctypes.c_int32(x.dtype == torch.bfloat16),
    )
    return out


@packed_linear.register_fake
def _(x: Tensor, packed: Tensor, bias: Tensor | None, size: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], size)


@contextmanager
def packed_linears(model: nn.Module, copies: PackedWeights) -> Iterator[dict[str, Any]]:
    """While it lasts, linear layers of a model that can be packed are products with packed weights.

    Other threads must not use the model, nor parts of it, meanwhile.

    Args:
        model: on the CPU.
        copies: that are known: those of a whole serve its parts. New ones are added.

    Yields:
        Options by which compiled code calls the kernel itself; none if no layer can be packed.

    Raises:
        Unavailable: if the kernel cannot be compiled.
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
        yield _calls() if changed else {}
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
    return _can_pack(*_kind(layer))


def _can_pack(inputs: int, dtype: torch.dtype) -> bool:
    return inputs > 0 and (dtype == torch.float32 or (dtype == torch.bfloat16 and inputs % 2 == 0))


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


def _calls() -> dict[str, Any]:
    _library()
    declared = (
        "AOTITorchError aoti_torch_cpu_packed_linear("
        "AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle* bias, int64_t size, "
        "AtenTensorHandle* result)"
    )
    operation = torch.ops.treespec.packed_linear.default
    return {"aot_inductor.custom_ops_to_c_shims": {operation: [declared]}}


@lru_cache(maxsize=1)
def _library() -> Any:
    """The kernel. Its names are seen by code that is loaded later."""
    return ctypes.CDLL(_built()._name, mode=ctypes.RTLD_GLOBAL)


def _built(*flags: str) -> Any:
    """Compiled, or found on disk, as the compiler's own code is."""
    from torch._inductor.codecache import CppCodeCache

    source: str = SOURCE.read_text(encoding="utf-8")
    try:
        return CppCodeCache.load(source, extra_flags=(*FLAGS, *flags))
    except Exception as problem:  # of the compiler, or of loading what it made
        raise Unavailable(
            f"the kernel of compiled passes cannot be compiled here: {in_words(problem, 'the compiler')}"
        ) from problem
