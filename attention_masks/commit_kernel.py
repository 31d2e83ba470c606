# ruff: noqa: N803  (compile-time arguments are in capitals)
"""The Triton kernel of `commit_rows`: moves rows of all layers down in one launch, in place.

A program owns BLOCK_D columns of one head of one sequence in one layer, keys or values, over all slots: no
other program reads or writes them. It moves rows `source[i]` to `start + i` in ascending chunks of BLOCK_T:
it loads all rows of a chunk, its threads meet at a barrier, and it stores all of them.

Why no row is lost although sources and destinations overlap: `source` increases strictly from at least
`start`, so `source[i] >= start + i`. Suppose a row is stored at `start + i`, the slot from which row j is
to be read, `start + i = source[j]`:

- `start + i = source[j] >= start + j`, so j <= i: row j is read in the same chunk or in an earlier one;
- each thread has loaded its part of row j before the barrier of the chunk of j, and stores row i after the
  barrier of the chunk of i, which is the same one or a later one.

Thus one barrier per chunk, between loads and stores, is enough (`tl.debug_barrier` also orders global
memory within the program). Rows loaded later were never stored to: loads may move up across chunks.
"""

from typing import no_type_check

import triton
import triton.language as tl

BLOCK_T = 16
"""Rows per chunk."""

BLOCK_D = 128
"""Largest number of columns per program."""

# `no_type_check` stops import hooks that decorate every function from touching what Triton compiles.


@triton.jit
@no_type_check
def _move(
    line, source, start, count, slots, stride_slot, stride_col, dim, block,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Move the rows of one block of columns, in the head that begins at `line`."""
    cols = block * BLOCK_D + tl.arange(0, BLOCK_D)
    at = cols.to(tl.int64)[None, :] * stride_col
    for first in range(0, count, BLOCK_T):
        i = first + tl.arange(0, BLOCK_T)
        origin = tl.load(source + i, mask=i < count, other=-1).to(tl.int64)
        # A source that the host could not check must not be read outside the tensor.
        inside = ((origin >= 0) & (origin < slots))[:, None] & (cols < dim)[None, :]
        rows = tl.load(line + origin[:, None] * stride_slot + at, mask=inside)
        tl.debug_barrier()
        target = (start + i).to(tl.int64)
        tl.store(line + target[:, None] * stride_slot + at, rows, mask=inside)


@triton.jit(do_not_specialize=["start", "count", "slots"])
@no_type_check
def move_rows(
    keys, values, source, start, count, slots, batch, kv_heads,
    k_dim, k_blocks, k_layer, k_batch, k_head, k_slot, k_col,
    v_dim, v_layer, v_batch, v_head, v_slot, v_col,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid: (layers x batch x kv_heads, column blocks of keys, then those of values).

    - keys, values: `[layers, batch, kv_heads, slots, dim]`, as integers, since they are only copied.
    - source: `[count]`, int32 or int64.
    """
    head = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    layer, sequence, head = head // kv_heads // batch, head // kv_heads % batch, head % kv_heads
    if block < k_blocks:
        line = keys + layer * k_layer + sequence * k_batch + head * k_head
        _move(line, source, start, count, slots, k_slot, k_col, k_dim, block, BLOCK_T, BLOCK_D)
    else:
        line = values + layer * v_layer + sequence * v_batch + head * v_head
        block = block - k_blocks
        _move(line, source, start, count, slots, v_slot, v_col, v_dim, block, BLOCK_T, BLOCK_D)


INTERPRETED = not isinstance(move_rows, triton.JITFunction)
"""Whether Triton interprets the kernel, which then takes CPU tensors."""
