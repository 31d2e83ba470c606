"""Tree attention of several sequences, each over keys in memory of its own, by Triton kernels.

The keys of a sequence are found by their addresses, which stand in a table on the device. The alternative,
rows of all sequences in one pool, would need no addresses. But then a sequence that outgrows its part moves
the pool, and with it everything that is tied to its addresses (captured passes of single sequences); one
that ends leaves a hole; and who joins must copy its rows. With addresses, a sequence can grow, end and join
whenever it likes, and the pass reads the same memory as its own passes do.
"""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attention_masks._kernels import load_kernels
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.scattered_pass import ScatteredPass
from attention_masks.tree_attention.tiles import INTERPRETED, block_dim, splits, tile
from attention_masks.tree_attention.triton import LOG2E, MERGED, device_properties


def places(
    memories: list[tuple[Float[Tensor, "1 Hkv _ D"], Float[Tensor, "1 Hkv _ D"]]],
) -> Int64[Tensor, "sequences 3"]:
    """A table of places, on the CPU: addresses of keys and values, and slots of a head.

    Args:
        memories: keys and values of each sequence; all heads have the same number of slots, one row after
            another.
    """
    return torch.tensor([[k.data_ptr(), v.data_ptr(), k.shape[2]] for k, v in memories]).view(-1, 3)


def scattered_attention(
    q: Float[Tensor, "1 Hq rows D"],
    k: Float[Tensor, "1 Hkv rows D"],
    v: Float[Tensor, "1 Hkv rows D"],
    table: Int64[Tensor, "sequences 3"],
    scattered: ScatteredPass,
    options: Options,
) -> Float[Tensor, "1 Hq rows D"]:
    """Write the rows' keys and values to the memory of their sequences; attend to what is visible there.

    Safe inside a captured CUDA graph: scratch belongs to the pass, and everything that changes from step to
    step is read from its buffer and the table. The output of padding rows is 0.

    Args:
        q: queries of the rows of all sequences.
        k: their keys, of q's dtype.
        v: their values, of q's dtype.
        table: on the device (`places`), as many lines as the pass has sequences; lines of padding are not
            read. Slots from `prefix_len` on are written, and must exist.
        scattered: the pass.
        options: as for `triton`, without pages.
    """
    name = "attention_masks.tree_attention.scattered_kernels"
    kernels = load_kernels(name, q.device, "tensors", "passes of single sequences")
    merging = load_kernels(name.replace("scattered", "triton"), q.device, "tensors", "another")
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    _, q_heads, _, dim = q.shape
    kv_heads = k.shape[1]
    texts, rows, nodes, keys = scattered.size
    group, most = q_heads // kv_heads, min(rows, nodes)
    if options.window is not None:
        keys = min(keys, options.window + nodes)
    processors, generation = device_properties(q.device)
    chosen = tile(most * group, dim, q.element_size(), generation)
    if kernels.INTERPRETED:
        chosen = INTERPRETED
    blocks, columns = -(-most * group // chosen.block_m), kv_heads * texts
    count = splits(keys, blocks * columns, chosen, processors)

    part, lse = q, q  # neither read nor written
    if count > 1:
        lines = kv_heads * count * rows * group
        scratch = scattered.scratch(q.device, lines * (dim + 1))
        part, lse = scratch[: lines * dim], scratch[lines * dim :]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    inner, outer, capped = options.scale * LOG2E, 1.0, options.softcap is not None
    if options.softcap is not None:
        inner, outer = options.scale / options.softcap, options.softcap * LOG2E
    head = {"DIM": dim, "BLOCK_D": block_dim(dim)}
    aligned = {"ALIGNED": dim * q.element_size() % 16 == 0}
    launch: dict[str, Any] = {}  # the interpreter takes no compile options
    merge: dict[str, Any] = {}
    if not kernels.INTERPRETED:
        launch = {"num_warps": chosen.warps, "num_stages": chosen.stages, "enable_fp_fusion": True}
        merge = {"num_warps": 4, "enable_fp_fusion": True}
    buffer = scattered.buffer
    with torch.cuda.device(q.device) if q.device.type == "cuda" else nullcontext():
        kernels.store_rows[(rows, kv_heads)](
            k, v, buffer, table, *k.stride()[1:3], *v.stride()[1:3], rows, nodes, **head, **aligned
        )
        kernels.attend_scattered[(blocks, columns, count)](
            q, out, part, lse, buffer,
            q if options.sinks is None else options.sinks.contiguous(),
            table, *q.stride()[1:3], *out.stride()[1:3],
            rows, nodes, kv_heads, count, inner, outer, options.window or 0,
            GROUP=group, **head, BLOCK_M=chosen.block_m, BLOCK_N=chosen.block_n, SPLIT=count > 1,
            SOFTCAP=capped, WINDOW=options.window is not None, SINKS=options.sinks is not None,
            INTERPRETED=kernels.INTERPRETED, **aligned, **launch,
        )  # fmt: skip
        if count > 1:
            merging.merge_splits[(rows * group, kv_heads)](
                part, lse, out, buffer, 0, *out.stride()[1:3], 0, rows, kv_heads, count,
                GROUP=group, **head, BLOCK_S=MERGED, **merge,
            )  # fmt: skip
    return out
