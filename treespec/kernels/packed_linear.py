"""Rows times a packed matrix (`packed_linear.cpp`): the weights are read once for all rows."""

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from treespec.kernels.build import held_call

BLOCK = 32
"""Number of outputs whose weights are stored together."""


def pack(weight: Float[Tensor, "N K"]) -> Float[Tensor, "blocks pairs 32 pair"]:
    """Reorder a matrix as the kernel reads it: in blocks of 32 outputs, in bfloat16 by pairs of inputs.

    Outputs are padded with zeros to a multiple of 32.
    """
    size, inputs = weight.shape
    if not can_pack(inputs, weight.dtype):
        raise ValueError(f"a matrix of {inputs} inputs in {weight.dtype} cannot be packed")
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    padded = F.pad(weight.detach(), (0, 0, 0, -size % BLOCK))
    return padded.reshape(-1, BLOCK, inputs // pair, pair).transpose(1, 2).contiguous()


def can_pack(inputs: int, dtype: torch.dtype) -> bool:
    """Whether matrices with this number of inputs and dtype can be packed."""
    return inputs > 0 and (dtype == torch.float32 or (dtype == torch.bfloat16 and inputs % 2 == 0))


@torch.library.custom_op("treespec::packed_linear", mutates_args=(), device_types="cpu")
def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None, size: int) -> Tensor:
    """Rows times a packed matrix, plus a bias. The result of a row does not depend on other rows.

    `x`: rows `[..., K]`. `bias`: float32, one number per packed output, padding included; None for none.
    `size`: number of outputs, without padding. Returns `[..., size]`, summed in float32; bfloat16 results
    are rounded once.
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
    out = x.new_empty(*x.shape[:-1], size)
    kernel_call(out, x.contiguous(), packed, bias)()
    return out


@packed_linear.register_fake
def _(x: Tensor, packed: Tensor, bias: Tensor | None, size: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], size)


def kernel_call(out: Tensor, x: Tensor, packed: Tensor, bias: Tensor | None) -> Callable[[], None]:
    """A call of the kernel on these tensors, which it keeps alive; see `held_call`."""
    sizes = (x.numel() // x.shape[-1], x.shape[-1], out.shape[-1])
    return held_call(
        "treespec_packed_linear",
        (packed, bias, x, out),
        *map(ctypes.c_int64, sizes),
        ctypes.c_int32(x.dtype == torch.bfloat16),
    )
