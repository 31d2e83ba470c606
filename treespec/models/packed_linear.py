"""Products of few rows with large matrices, as passes over nodes of a tree ask them: weights are read once.

Between one row and some dozen, libraries of matrix products are far from the speed at which weights can be
read. So compiled passes hold weights in an order of their own (`pack`), which a kernel of ours reads as one
stream for each thread: sums of 32 outputs and up to 12 rows stay in registers, and numbers in bfloat16 are
multiplied as such where the processor can (`packed_linear.cpp`). One copy serves passes over any number of
nodes: what plain decoding reads, trees read too.

Measured on two cores (AVX-512, bfloat16) in one run: passes of a target of 50M parameters behind 192 rows,
medians in ms. "Library": oneDNN, and for one row code of the compiler's (`max_autotune_gemm`). "Bytes": of
all weights, over the bandwidth of a sum over 120 MB in between.

    | nodes | 1 | 2 | 4 | 8 | 16 | 22 | 32 | 64 |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | library | 3.7 | 6.2 | 5.4 | 6.5 | 9.1 | 9.8 | 12.1 | 23.4 |
    | here | 3.9 | 3.8 | 3.8 | 4.3 | 7.5 | 8.4 | 11.2 | 23.1 |
    | bytes | 3.3 | 3.1 | 3.4 | 3.1 | 2.1 | 2.9 | 3.0 | 2.5 |

With the library, weights of one row and of more are two copies, which drive each other out of the cache: of
the embedded target (36 MB beside a cache of 32 MiB) a pass over one node took 1.96 ms behind passes over
four, and 1.13 behind others like it; here 1.02 and 1.13.

Linear layers that read the same rows, such as queries, keys and values, are one product (`TOGETHER`): each
asks for the product of all and takes its part, and the compiler computes once what is asked for repeatedly.

Not covered: float16, odd numbers of inputs in bfloat16, classes derived from `nn.Linear`, batched products
of experts. These stay with the library.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MethodType
from typing import Any, no_type_check

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

__all__ = ["SOURCE", "calls_from_compiled_code", "pack", "packed_linear", "packed_linears"]

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
    """
    size, inputs = weight.shape
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    padded = F.pad(weight.detach(), (0, 0, 0, -size % BLOCK))
    return padded.view(-1, BLOCK, inputs // pair, pair).transpose(1, 2).contiguous()


@torch.library.custom_op("treespec::packed_linear", mutates_args=())
def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None, size: int) -> Tensor:
    """Rows times a packed matrix, and a bias: `[..., K]`, of `pack`, of `_bias`, gives `[..., size]`.

    Sums are in float32; a row's result does not depend on the others.
    """
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


def calls_from_compiled_code() -> dict[str, Any]:
    """The compiler's option by which its code calls the kernel directly, once it is loaded here."""
    _library()
    declared = (
        "AOTITorchError aoti_torch_cpu_packed_linear("
        "AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle* bias, int64_t size, "
        "AtenTensorHandle* result)"
    )
    operation = torch.ops.treespec.packed_linear.default
    return {"aot_inductor.custom_ops_to_c_shims": {operation: [declared]}}


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """While it lasts, linear layers of a model are products with packed copies of their weights."""
    changed: list[nn.Module] = []
    try:
        for group in _groups(model):
            weights = [_matrix(layer) for layer in group]
            packed, bias = pack(torch.cat(weights)), _bias(group)
            size, begin = sum(map(len, weights)), 0
            for layer, weight in zip(group, weights, strict=True):
                changed.append(layer)
                layer._buffers |= {"packed": packed, "packed_bias": bias}
                layer.forward = MethodType(_part(begin, len(weight), size), layer)
                begin += len(weight)
        yield
    finally:
        for layer in changed:
            del layer._buffers["packed"], layer._buffers["packed_bias"], layer.forward


def _groups(model: nn.Module) -> list[list[nn.Module]]:
    """Layers that can be packed, those together that are one product."""
    alone = {layer: [layer] for layer in model.modules() if _fits(layer)}
    groups: list[list[nn.Module]] = []
    for parent in model.modules():
        for names in TOGETHER:
            some: list[Any] = [getattr(parent, name, None) for name in names]
            if all(layer in alone for layer in some) and len({_kind(layer) for layer in some}) == 1:
                groups.append([alone.pop(layer)[0] for layer in some])
    return [*groups, *alone.values()]


def _fits(layer: nn.Module) -> bool:
    if type(layer) not in (nn.Linear, Conv1D) or "forward" in layer.__dict__:
        return False
    inputs, dtype = _kind(layer)
    return dtype == torch.float32 or (dtype == torch.bfloat16 and inputs % 2 == 0)


def _kind(layer: nn.Module) -> tuple[int, torch.dtype]:
    matrix = _matrix(layer)
    return matrix.shape[1], matrix.dtype


def _matrix(layer: Any) -> Tensor:
    """Outputs by inputs. transformers' `Conv1D`, GPT-2's linear layer, holds them the other way."""
    weight = layer.weight.detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def _bias(group: list[Any]) -> Float[Tensor, " outputs"] | None:
    """Of all outputs of these layers and of those that pad them; None if none has one."""
    if all(layer.bias is None for layer in group):
        return None
    parts = [
        torch.zeros(len(_matrix(layer))) if layer.bias is None else layer.bias.detach().float()
        for layer in group
    ]
    whole = torch.cat(parts)
    return F.pad(whole, (0, -len(whole) % BLOCK))


@no_type_check  # while tests check types, the compiler could not trace it
def _part(begin: int, count: int, size: int) -> Callable[..., Tensor]:
    """A layer's call, whose outputs are some of those of the packed matrix."""

    def forward(self: Any, x: Tensor) -> Tensor:
        out = torch.ops.treespec.packed_linear(x.contiguous(), self.packed, self.packed_bias, size)
        return out if count == size else out[..., begin : begin + count]

    return forward


@lru_cache(maxsize=1)
def _library() -> Any:
    """The kernel. Its names are seen by code that is loaded later."""
    return ctypes.CDLL(_built()._name, mode=ctypes.RTLD_GLOBAL)


def _built(*flags: str) -> Any:
    """Compiled, or found on disk, as the compiler's own code is."""
    from torch._inductor.codecache import CppCodeCache

    source = SOURCE.read_text(encoding="utf-8")
    return CppCodeCache.load(source, extra_flags=(*FLAGS, *flags), needs_vec_isa=True)
