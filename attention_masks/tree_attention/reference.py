"""Tree attention written out: scores, softmax, weighted sum. Defines the correct result."""

import torch
from jaxtyping import Float
from torch import Tensor

from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tree_pass import TreePass


def reference(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    tree_pass: TreePass,
    options: Options,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """Softmax of the visible keys' scores, times their values, in float32 or wider.

    Per head, `softmax(mask(cap(scale * q @ k.T))) @ v` with `cap(x) = softcap * tanh(x / softcap)`.
    A sink is one more column of scores, dropped after the softmax. float64 inputs are computed in
    float64, all others in float32 and rounded once at the end. Query heads that share a key head are
    rows of one matrix product, so keys are not repeated. Slots from `tree_pass.key_count` on are
    never read. Differentiable.
    """
    batch, q_heads, rows, head_dim = q.shape
    kv_heads, used = k.shape[1], tree_pass.key_count
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = k[:, :, :used].to(wide), v[:, :, :used].to(wide)

    scale, softcap = options.scale, options.softcap
    factor = scale if softcap is None else scale / softcap
    grouped = (q.to(wide) * factor).reshape(batch, kv_heads, -1, head_dim)
    scores = grouped @ keys.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores)
    mask = tree_pass.mask(options.window, q.device)
    scores = scores.view(batch, q_heads, rows, used).masked_fill(~mask, float("-inf"))
    if options.sinks is not None:
        sink = options.sinks.to(wide)[:, None, None].expand(batch, q_heads, rows, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :used].reshape(batch, kv_heads, -1, used)
    return (weights @ values).view(batch, q_heads, rows, head_dim).to(q.dtype)
