"""Tree attention by Triton kernels: split keys, packed heads, a mask of two integers per node.

Reads keys and values once, writes no mask, waits for nothing: the lengths and the tree are read on the
device. On a CPU it runs through Triton's interpreter if TRITON_INTERPRET=1 is set before Triton is
imported: slow, for tests.

Per layer and sequence it moves `2 N Hkv D` elements of keys and values (N keys) and computes
`4 T Hq N D` flops for T nodes. By the data sheet of an H200 (4.8 TB/s, 989 TFLOP/s in bfloat16) it is
bound by memory while `T Hq / Hkv` is below 206.
"""

from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attention_masks._kernels import load_kernels
from attention_masks.errors import InvalidInput, Unavailable, Unsupported
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tiles import INTERPRETED, Tile, block_dim, splits, tile
from attention_masks.tree_attention.tree_pass import AnyPass
from attention_masks.tree_attention.tuning import tuned

__all__ = ["available", "triton"]

INTERPRETED_PROCESSORS = 8
"""Multiprocessors that the interpreter is said to have: enough for several splits in small tests."""

LARGEST_GRID = 65535
"""Programs along any axis of a grid but the first."""

MERGED = 16
"""Splits that stage 2 loads at once."""

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
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """The same as `reference`: sums in float32, weights rounded to the dtype of the values.

    Two launches, or one where the keys are not split. Safe inside a captured CUDA graph: scratch
    belongs to the pass, and everything that changes from step to step is read from its arrays.

    Args:
        q: queries; any strides, but the head dimension must be contiguous (copied otherwise).
        k: keys, `[batch, kv_heads, slots, head_dim]`, or `[pages, kv_heads, page, head_dim]` with
            `options.block_table`; the head dimension contiguous.
        v: values, likewise.
        tree_pass: one tree for all sequences, or one for each.
        options: scale, softcap, window, sinks, block table.
        tile_choice: instead of the table's (`tuning` measures them).
        split_count: instead of the chosen number of splits.

    Raises:
        Unavailable: without Triton, or on a CPU outside the interpreter.
        Unsupported: for head dimensions above 256, float64, or gradients.
        InvalidInput: if the head dimension of keys or values is not contiguous.
    """
    kernels = _kernels(q.device)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise Unsupported("impl='triton' has no backward pass: use impl='sdpa' or 'reference'")
    for name, x in (("k", k), ("v", v)):
        if x.stride(-1) != 1:
            raise InvalidInput(
                f"{name} has stride {x.stride(-1)} along head_dim, but must be contiguous there: "
                "a copy of the whole cache in every layer would be no kernel's time"
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
    processors, generation = _properties(q.device)
    if tile_choice is None:
        # The table is asked in any case: the interpreter refuses what a GPU would.
        tile_choice = tile(rows * group, dim, q.element_size(), generation)
        if kernels.INTERPRETED:
            tile_choice = INTERPRETED
        else:
            again = partial(triton, q, k, v, tree_pass, options)
            measured = tuned(
                q, rows * group, keys, generation, lambda shape: again(tile_choice=shape)
            )
            tile_choice = measured or tile_choice
    blocks, columns = -(-rows * group // tile_choice.block_m), kv_heads * batch
    count = split_count or splits(keys, blocks * columns, tile_choice, processors)

    arrays = tree_pass.arrays(q.device)
    # One tree for the whole batch: every sequence reads the same line.
    line = arrays.buffer.stride(0) if arrays.buffer.shape[0] > 1 else 0
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
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
    launch, merge = {}, {}  # the interpreter knows no warps
    if not kernels.INTERPRETED:
        launch = {"num_warps": tile_choice.warps, "num_stages": tile_choice.stages}
        launch["enable_fp_fusion"] = True
        merge = {"num_warps": 4, "enable_fp_fusion": True}
    # A kernel starts on the current device, whichever its tensors are on.
    with torch.cuda.device(q.device) if q.device.type == "cuda" else nullcontext():
        kernels.attend_split[(blocks, columns, count)](
            q, k, v, out, part, lse, arrays.buffer,
            q if options.sinks is None else options.sinks.contiguous(),
            arrays.buffer if table is None else table,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            line, 0 if table is None else table.stride(0),
            arrays.rows, arrays.nodes, kv_heads, count, inner, outer, options.window or 0,
            **constants, BLOCK_M=tile_choice.block_m, BLOCK_N=tile_choice.block_n,
            SPLIT=count > 1, PAGE=0 if table is None else k.shape[2],
            SOFTCAP=capped, WINDOW=options.window is not None, SINKS=options.sinks is not None,
            INTERPRETED=kernels.INTERPRETED, **launch,
        )  # fmt: skip
        if count > 1:
            kernels.merge_splits[(rows * group, columns)](
                part, lse, out, arrays.buffer,
                *out.stride()[:3], line, arrays.rows, kv_heads, count,
                **constants, BLOCK_S=MERGED, **merge,
            )  # fmt: skip
    return out


def available(device: torch.device) -> str | None:
    """None if the kernels run on this device, or what is missing."""
    try:
        _kernels(device)
    except Unavailable as missing:
        return str(missing)
    return None


def _kernels(device: torch.device) -> Any:
    module = "attention_masks.tree_attention.triton_kernels"
    return load_kernels(module, device, "tensors", "impl='sdpa', 'reference' or 'auto'")


@lru_cache
def _properties(device: torch.device) -> tuple[int, int]:
    """Multiprocessors and major compute capability."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS, 9
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major
