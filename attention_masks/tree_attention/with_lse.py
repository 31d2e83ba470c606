"""Attention that also returns the log-sum-exp of its scores, so that partial results can be merged.

`scaled_dot_product_attention` computes the log-sum-exps but does not return them; the kernels under it
do. Base e throughout this file.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from attention_masks.errors import Unsupported

FLASH_DTYPES = (torch.float16, torch.bfloat16)
ALIGNED = 8
"""Number of bias elements that the CUDA kernel reads at once."""


def attention_with_lse(
    q: Float[Tensor, "batch heads rows head_dim"],
    k: Float[Tensor, "batch heads keys head_dim"],
    v: Float[Tensor, "batch heads keys head_dim"],
    bias: Float[Tensor, "rows keys"] | None,
    scale: float,
) -> tuple[Float[Tensor, "batch heads rows head_dim"], Float[Tensor, "batch heads rows"]]:
    """Softmax of `scale * q @ k.T + bias` times v, and the log-sum-exp of each row.

    Runs PyTorch's flash kernel on a CPU. On CUDA it runs FlashAttention if there is no bias, the dtype has
    two bytes and the head dimension is a multiple of 8; otherwise the memory-efficient kernel.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise Unsupported(
            "log-sum-exps have no backward pass here (sinks with impl='sdpa', impl='two_pass'): "
            "use impl='reference'"
        )
    aten = torch.ops.aten
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, attn_mask=bias, scale=scale
        )
        return out, lse
    if bias is None and q.dtype in FLASH_DTYPES and q.shape[-1] % ALIGNED == 0:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)
        return out, lse
    if bias is not None:
        keys = bias.shape[-1]
        bias = F.pad(bias, (0, -keys % ALIGNED))[:, :keys].expand(*q.shape[:2], -1, -1)
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, scale=scale)
    return out, lse[..., : q.shape[2]]


def merge(
    out: Float[Tensor, "*rows head_dim"],
    lse: Float[Tensor, "*rows"],
    other: Float[Tensor, "*rows head_dim"],
    other_lse: Float[Tensor, "*rows"],
) -> Float[Tensor, "*rows head_dim"]:
    """Attention over two sets of keys from the attention over each, in float32 or wider.

    `out + (other - out) * sigmoid(other_lse - lse)`: each set weighs as much as its exponentials.
    """
    wide = lse.dtype
    share = torch.sigmoid(other_lse - lse)[..., None]
    other = torch.where(share > 0, other.to(wide), 0)  # rows that see nothing there may be NaN
    return torch.lerp(out.to(wide), other, share)


def beside_sinks(
    lse: Float[Tensor, "batch q_heads rows 1"], sinks: Float[Tensor, " q_heads"]
) -> Float[Tensor, "batch q_heads rows 1"]:
    """The share of the softmax that a sink per head leaves to the keys."""
    return torch.sigmoid(lse - sinks.to(lse.dtype)[:, None, None])
