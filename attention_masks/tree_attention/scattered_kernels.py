# ruff: noqa: N803  (compile-time arguments are in capitals)
"""The two Triton kernels of passes whose sequences have memory of their own (`scattered_pass`).

`store_rows` writes the keys and values of all rows to the memory of their sequences. `attend_scattered` is
`triton_kernels.attend_split` with other addresses: the rows of all sequences are one after the other, and a
program finds in the table of places where the keys of its sequence are. Its partial sums are merged by
`merge_splits`, for which all rows are one sequence.

Addresses are integers in the memory of the device. So a captured graph reads the memory that the table
names at the replay.
"""

from typing import no_type_check

import triton
import triton.language as tl

from attention_masks.tree_attention.triton_kernels import MIN_CHUNK, over_keys, write_sums


@triton.jit
@no_type_check
def _memory(place, OF: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer whose address stands at a place."""
    memory = tl.load(place).to(tl.pointer_type(OF))
    if ALIGNED:  # of the pointer: the compiler does not see through the cast
        memory = tl.multiple_of(memory, 16)
    return memory


@triton.jit(do_not_specialize=["rows", "nodes"])
@no_type_check
def store_rows(
    k_ptr, v_ptr, arrays_ptr, places_ptr, k_head, k_row, v_head, v_row, rows, nodes,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write one row of one key head. Grid: (rows, kv heads)."""
    row, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    node = tl.load(arrays_ptr + 2 + row)
    if node >= 0:
        text = tl.load(arrays_ptr + 2 + 3 * rows + row).to(tl.int64)
        slot = tl.load(arrays_ptr + 2 + 4 * rows + text * (4 + 3 * nodes)) + node
        place = places_ptr + text * 3
        at = (head * tl.load(place + 2) + slot) * DIM
        dims = tl.arange(0, BLOCK_D)
        in_k = dims < DIM
        row_at = row.to(tl.int64)
        keys = tl.load(k_ptr + head * k_head + row_at * k_row + dims, mask=in_k, other=0.0)
        values = tl.load(v_ptr + head * v_head + row_at * v_row + dims, mask=in_k, other=0.0)
        k_to = _memory(place, k_ptr.dtype.element_ty, ALIGNED)
        v_to = _memory(place + 1, v_ptr.dtype.element_ty, ALIGNED)
        tl.store(k_to + at + dims, keys, mask=in_k)
        tl.store(v_to + at + dims, values, mask=in_k)


@triton.jit(do_not_specialize=["rows", "nodes", "kv_heads", "splits", "window"])
@no_type_check
def attend_scattered(
    q_ptr, out_ptr, part_ptr, lse_ptr, arrays_ptr, sinks_ptr, places_ptr,
    q_head, q_row, out_head, out_row, rows, nodes, kv_heads, splits, inner, outer, window,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, ALIGNED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attention of one block of rows of one sequence over one split of its keys.

    Grid: (blocks of rows of a sequence, kv heads x sequences, splits). `inner` and `outer` are those of
    `attend_split`.
    """
    head = (tl.program_id(1) % kv_heads).to(tl.int64)
    text = (tl.program_id(1) // kv_heads).to(tl.int64)
    split = tl.program_id(2)
    of_rows = arrays_ptr + 2
    of_text = of_rows + 4 * rows + text * (4 + 3 * nodes)
    prefix, size = tl.load(of_text), tl.load(of_text + 1)
    first, count = tl.load(of_text + 2), tl.load(of_text + 3)

    offs = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_rows = offs // GROUP < count
    row, member = first + offs // GROUP, offs % GROUP
    node = tl.load(of_rows + row, mask=in_rows, other=-1)
    rank = tl.load(of_rows + rows + row, mask=in_rows, other=-1)
    position = node  # read under WINDOW only
    if WINDOW:
        position = tl.load(of_rows + 2 * rows + row, mask=in_rows, other=0)
    dims = tl.arange(0, BLOCK_D)
    q_head_of = head * GROUP + member
    q_at = q_ptr + q_head_of * q_head + row.to(tl.int64) * q_row
    q = tl.load(
        q_at[:, None] + dims[None, :], mask=in_rows[:, None] & (dims < DIM)[None, :], other=0.0
    )

    place = places_ptr + text * 3
    of_head = head * tl.load(place + 2) * DIM
    k_base = _memory(place, q_ptr.dtype.element_ty, ALIGNED) + of_head
    v_base = _memory(place + 1, q_ptr.dtype.element_ty, ALIGNED) + of_head
    acc, high, total, some = over_keys(
        q, node, rank, position, prefix, size, of_text + 4, nodes, k_base, v_base, places_ptr,
        0, DIM, 0, DIM, sinks_ptr + q_head_of, in_rows, split, splits, inner, outer, window,
        DIM, BLOCK_D, BLOCK_M, BLOCK_N, MIN_CHUNK, 0, SOFTCAP, WINDOW, SINKS, INTERPRETED,
    )  # fmt: skip
    out_at = out_ptr + q_head_of * out_head + row.to(tl.int64) * out_row
    line = (head * splits + split) * (rows * GROUP) + first * GROUP + offs
    write_sums(
        acc, high, total, some, node >= 0, in_rows, out_at, part_ptr, lse_ptr, line,
        out_ptr.dtype.element_ty, DIM, BLOCK_D, SPLIT,
    )  # fmt: skip


INTERPRETED = not isinstance(attend_scattered, triton.JITFunction)
"""Whether the kernels run on CPU tensors, because TRITON_INTERPRET=1 was set before this import."""
