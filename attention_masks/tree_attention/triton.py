"""Tree attention by Triton kernels: split keys, packed heads, a mask of two integers per node.

The kernels read keys and values once and write no mask. The host never waits: lengths and tree are read
on the device. On a CPU they run in Triton's interpreter if TRITON_INTERPRET=1 is set before Triton is
imported: slow, for tests.

For each layer and sequence they read `2 N Hkv D` elements of keys and values (N keys) and compute
`4 T Hq N D` flops for T nodes. By the data sheet of an H200 (4.8 TB/s, 989 TFLOP/s in bfloat16) they are
memory-bound while `T Hq / Hkv` is below 206.
"""

from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_masks._kernels import load_kernels, why_too_old
from attention_masks.errors import InvalidInput, Unavailable, Unsupported
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tiles import INTERPRETED, Plan, Tile, block_dim, planned
from attention_masks.tree_attention.tree_pass import AnyPass
from attention_masks.tree_attention.tuning import tuned

INTERPRETED_PROCESSORS = 8
"""Number of multiprocessors assumed for the interpreter: enough for several splits in small tests."""

LARGEST_GRID = 65535
"""Largest number of programs along any axis of a grid but the first."""

MERGED = 16
"""Number of splits that stage 2 loads at once."""

LOG2E = 1.4426950408889634


def triton(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "_ kv_heads slots head_dim"],
    v: Float[Tensor, "_ kv_heads slots head_dim"],
    tree_pass: AnyPass,
    options: Options,
    *,
    tile_choice: Tile | None = None,
    split_count: int | None = None,
    in_place: bool = False,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `reference`, with sums in float32 and weights rounded to the dtype of the values.

    Takes one launch, or two if many splits of the keys are merged (`tiles.plan`). Safe inside a captured
    CUDA graph: scratch and counters belong to the pass, and everything that changes from step to step is
    read from its arrays. Calls over one pass must run one after another.

    `q`: queries, of any strides; copied if the head dimension is not contiguous. `k`: keys, `[batch,
    kv_heads, slots, head_dim]`, or `[pages, kv_heads, page, head_dim]` with `options.block_table`; the head
    dimension must be contiguous. `tile_choice`: tile to use instead of the planned one (`tuning` measures
    tiles). `split_count`: number of splits instead of the planned one; `in_place` then says how they are
    merged.
    """
    kernels = _kernels(q.device)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise Unsupported("impl='triton' has no backward pass: use impl='sdpa' or 'reference'")
    for name, x in (("k", k), ("v", v)):
        if x.stride(-1) != 1:
            raise InvalidInput(
                f"{name} has stride {x.stride(-1)} along head_dim, but must be contiguous there: "
                "a kernel call must not copy the whole cache in every layer"
            )
    if q.stride(-1) != 1:
        q = q.contiguous()
    batch, q_heads, rows, dim = q.shape
    kv_heads = k.shape[1]
    if kv_heads * batch > LARGEST_GRID:
        raise Unsupported(
            f"impl='triton' takes up to {LARGEST_GRID} key heads x sequences, not {kv_heads * batch}"
        )
    group = q_heads // kv_heads
    keys = tree_pass.key_count
    if options.window is not None:
        keys = min(keys, options.window + rows)
    device, columns = device_properties(q.device), kv_heads * batch
    if tile_choice is None and not kernels.INTERPRETED:
        call = partial(triton, q, k, v, tree_pass, options)
        tile_choice = tuned(q, rows * group, keys, device[1], lambda shape: call(tile_choice=shape))
    # The interpreter plans too, so that it refuses what a GPU would.
    plan = planned(rows * group, keys, columns, dim, q.element_size(), *device, tile_choice)
    if kernels.INTERPRETED and tile_choice is None:
        plan = planned(rows * group, keys, columns, dim, q.element_size(), *device, INTERPRETED)
    if split_count is not None:
        plan = Plan(plan.tile, split_count, in_place and split_count > 1)
    shape, count, merged_here = plan
    blocks = -(-rows * group // shape.block_m)

    arrays = tree_pass.arrays(q.device)
    # If the batch shares one tree, every sequence reads the same line.
    line = arrays.buffer.stride(0) if arrays.buffer.shape[0] > 1 else 0
    # The heads of a row are neighbours, as the product after the attention reads them.
    by_row = torch.empty_like(q.transpose(1, 2), memory_format=torch.contiguous_format)
    out = by_row.transpose(1, 2)
    part, lse = q, q  # neither read nor written
    if count > 1:
        lines = columns * count * rows * group
        scratch = tree_pass.scratch(q.device, lines * (dim + 1))
        part, lse = scratch[: lines * dim], scratch[lines * dim :]
    inner, outer, capped = options.scale * LOG2E, 1.0, options.softcap is not None
    if options.softcap is not None:
        inner, outer = options.scale / options.softcap, options.softcap * LOG2E
    table = options.block_table
    constants = {"GROUP": group, "DIM": dim, "BLOCK_D": block_dim(dim)}
    launch, merge = {}, {}  # the interpreter takes no compile options
    if not kernels.INTERPRETED:
        launch = {"num_warps": shape.warps, "num_stages": shape.stages}
        launch["enable_fp_fusion"] = True
        merge = {"num_warps": 4, "enable_fp_fusion": True}
    # Triton launches on the current device, which need not be the tensors' device.
    with torch.cuda.device(q.device) if q.device.type == "cuda" else nullcontext():
        kernels.attend_split[(blocks, columns, count)](
            q, k, v, out, part, lse, arrays.buffer,
            tree_pass.counters(q.device) if merged_here else arrays.buffer,
            q if options.sinks is None else options.sinks.contiguous(),
            arrays.buffer if table is None else table,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            line, 0 if table is None else table.stride(0),
            arrays.rows, arrays.nodes, kv_heads, count, inner, outer, options.window or 0,
            **constants, BLOCK_M=shape.block_m, BLOCK_N=shape.block_n, CHUNK=plan.chunk,
            SPLIT=count > 1, IN_PLACE=merged_here, PAGE=0 if table is None else k.shape[2],
            SOFTCAP=capped, WINDOW=options.window is not None, SINKS=options.sinks is not None,
            INTERPRETED=kernels.INTERPRETED, **launch,
        )  # fmt: skip
        if count > 1 and not merged_here:
            kernels.merge_splits[(rows * group, columns)](
                part, lse, out, arrays.buffer,
                *out.stride()[:3], line, arrays.rows, kv_heads, count,
                **constants, BLOCK_S=MERGED, **merge,
            )  # fmt: skip
    return out


def available(device: torch.device) -> str | None:
    """None if the kernels run on this device, else what is missing."""
    try:
        _kernels(device)
    except Unavailable as missing:
        return str(missing)
    return None


def _kernels(device: torch.device) -> Any:
    if why := why_too_old(device):
        raise Unavailable(f"impl='triton' {why}: use impl='sdpa', 'reference' or 'auto'")
    module = "attention_masks.tree_attention.triton_kernels"
    return load_kernels(module, device, "tensors", "impl='sdpa', 'reference' or 'auto'")


@lru_cache
def device_properties(device: torch.device) -> tuple[int, int]:
    """Number of multiprocessors, and major compute capability."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS, 9
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major
