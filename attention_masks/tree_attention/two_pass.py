"""Two passes: the prefix without a mask, the tree under its mask, merged by their log-sum-exps.

This is the way to build tree attention from library kernels that know no trees: the long part runs at the
full speed of unmasked attention, at the price of a second set of launches and another read of both outputs.

On a CPU it gains nothing, because the mask costs nothing there: tree attention is bound by arithmetic. It
took 1.0 to 3.0 times as long as impl="sdpa" on two cores of an Intel Xeon (256 to 8192 keys, 1 to 22 nodes;
less with more of either). `experiments.research.benchmarks.attention_on_cpu` measures it.
"""

from jaxtyping import Float
from torch import Tensor

from attention_masks.errors import Unsupported
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tree_pass import TreePass
from attention_masks.tree_attention.with_lse import attention_with_lse, beside_sinks, merge


def two_pass(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    tree_pass: TreePass,
    options: Options,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `reference`; each part is in q's dtype, the merge in float32 or wider.

    With a window the prefix has a mask too, because its first visible key depends on a row's depth.
    """
    if options.softcap is not None:
        raise Unsupported(
            f"impl='two_pass' cannot apply softcap = {options.softcap}: use impl='reference', 'flex' "
            "or 'triton'"
        )
    batch, q_heads, rows, head_dim = q.shape
    kv_heads = k.shape[1]
    folded = q.reshape(batch, kv_heads, -1, head_dim)
    visible = tree_pass.keys(options.window)
    prefix_len = tree_pass.prefix_len
    group = q_heads // kv_heads
    prefix_bias, tree_bias = tree_pass.bias_parts(options.window, q.dtype, q.device, group)
    parts = [(slice(prefix_len, visible.stop), tree_bias)]
    if prefix_len > visible.start:
        parts.append((slice(visible.start, prefix_len), prefix_bias))
    results = [
        attention_with_lse(folded, k[:, :, keys], v[:, :, keys], mask, options.scale)
        for keys, mask in parts
    ]
    (out, lse), *prefix_results = results
    for prefix_out, prefix_lse in prefix_results:
        # If a row's window begins after the prefix, all its scores there are hidden, and their
        # log-sum-exp is so low that the prefix's share is 0.
        out = merge(out, lse, prefix_out, prefix_lse)
        lse = lse.logaddexp(prefix_lse)
    out, lse = (x.reshape(batch, q_heads, rows, -1) for x in (out, lse))
    if options.sinks is not None:
        out = out * beside_sinks(lse, options.sinks)
    return out.to(q.dtype)
