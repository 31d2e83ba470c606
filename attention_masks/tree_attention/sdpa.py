"""Tree attention through `torch.nn.functional.scaled_dot_product_attention`.

Query heads that share a key head are folded into its rows, so that keys and values are read once
and never repeated. Measured on one CPU core (Xeon, torch 2.13; microseconds per call, Hq/Hkv = 8/2,
head dim 64; rows folded / `enable_gqa` / keys expanded with stride 0 / keys repeated):

    bf16   1 row  x  256 keys    28 / 217 / 229 / 242
    bf16   1 row  x 1024 keys    86 / 867 / 884 / 955
    bf16  16 rows x 1024 keys   530 / 596 / 619 / 702
    fp32   1 row  x 1024 keys    64 / 106 / 121 / 230
    fp32  16 rows x 1024 keys   484 / 513 / 534 / 711

Folding was fastest in all 16 cases of {bf16, fp32} x {1, 8, 16, 64 rows} x {256, 1024 keys}.
"""

import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from attention_masks.errors import Unsupported
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tree_pass import TreePass
from attention_masks.tree_attention.with_lse import attention_with_lse, beside_sinks


def sdpa(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    tree_pass: TreePass,
    options: Options,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `reference`, by PyTorch's fused attention and an additive mask in q's dtype.

    Keys before every row's window are not read, and if all rows see all keys there is no mask. With
    sinks, a kernel that also returns log-sum-exps is called by name (`with_lse`), and the output is
    scaled by the share that the sink leaves to the keys.
    """
    if options.softcap is not None:
        raise Unsupported(
            f"impl='sdpa' cannot apply softcap = {options.softcap}: use impl='reference', or "
            "impl='auto', which takes an implementation that can"
        )
    batch, q_heads, rows, head_dim = q.shape
    kv_heads = k.shape[1]
    group, keys = q_heads // kv_heads, tree_pass.keys(options.window)
    bias = tree_pass.bias(options.window, q.dtype, q.device, group)
    folded = q.reshape(batch, kv_heads, group * rows, head_dim)
    if options.sinks is None:
        out = F.scaled_dot_product_attention(
            folded, k[:, :, keys], v[:, :, keys], attn_mask=bias, scale=options.scale
        )
        return out.reshape(batch, q_heads, rows, head_dim)
    out, lse = attention_with_lse(folded, k[:, :, keys], v[:, :, keys], bias, options.scale)
    out, lse = (x.reshape(batch, q_heads, rows, -1) for x in (out, lse))
    return (out * beside_sinks(lse, options.sinks)).to(q.dtype)
