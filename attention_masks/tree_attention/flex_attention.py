"""Tree attention through FlexAttention: the mask as a function of indices, compiled into the kernel.

On CUDA the compiled kernel runs, with tiles of BLOCK_M rows (by default all rows are one block).
On a CPU the function runs uncompiled: slow and exact, to check masks.
"""

from functools import lru_cache
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tree_pass import TreePass
from attention_masks.tree_attention.with_lse import beside_sinks

KERNEL_OPTIONS: dict[str, Any] = {"BLOCK_M": 64, "BLOCK_N": 64}
"""Tile sizes of the compiled kernel."""


def flex(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    tree_pass: TreePass,
    options: Options,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `reference`, by `torch.nn.attention.flex_attention`.

    The BlockMask is computed arithmetically, once for each pass and window, without a dense mask over all
    keys.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    from attention_masks.flex import block_mask

    batch, q_heads, rows, head_dim = q.shape
    kv_heads = k.shape[1]
    group, used = q_heads // kv_heads, tree_pass.key_count
    mask = tree_pass.kept(
        ("flex", options.window, q.device, group),
        lambda: block_mask(
            tree_pass.topology.to(q.device),
            tree_pass.prefix_len,
            rows=tree_pass.rows,
            window=options.window,
            group=group,
        ),
    )
    compiled = q.device.type == "cuda"
    call = _compiled if compiled else flex_attention
    kwargs: dict[str, Any] = {"scale": options.scale, "block_mask": mask}
    if options.softcap is not None:
        kwargs["score_mod"] = _capped(options.softcap)
    if compiled:
        kwargs["kernel_options"] = KERNEL_OPTIONS
    folded = q.reshape(batch, kv_heads, group * rows, head_dim)
    keys, values = k[:, :, :used], v[:, :, :used]
    if options.sinks is None:
        return call(folded, keys, values, **kwargs).reshape(q.shape)
    out, aux = call(folded, keys, values, return_aux=AuxRequest(lse=True), **kwargs)
    out, lse = (x.reshape(batch, q_heads, rows, -1) for x in (out, aux.lse))
    return (out * beside_sinks(lse, options.sinks)).to(q.dtype)


@lru_cache(maxsize=8)
def _capped(softcap: float) -> Any:
    """The softcap as a `score_mod`; cached, because a new function object would be recompiled."""

    @no_type_check  # FlexAttention reads the function's code, which an import hook's wrapper would hide
    def cap(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


def _compiled(*tensors: Tensor, **kwargs: Any) -> Any:
    """Call the compiled function.

    Each combination of head dimension, options and dtype compiles once. There are more than 8 of them,
    torch's default limit, beyond which it would continue uncompiled and slow, with a warning.
    """
    with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        return _function()(*tensors, **kwargs)


@lru_cache
def _function() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
