# ruff: noqa: N803  (compile-time arguments are in capitals)
"""The Triton kernels of tree attention: attention over a split of the keys, and the merge of splits.

Stage 1 (`attend_split`): a program owns BLOCK_M query rows of one key head and one split of the keys.
Row m is node `m // GROUP` under query head `m % GROUP` of the group, so keys and values are read once
for all heads that share them, and the group need not be a power of two. Full tiles of the prefix have no
mask. The tile in which the prefix ends and the tiles of the tree are masked by the intervals of
`topology`: a node sees a key if the key's rank <= its own rank < the end of the key's subtree. Tiles
after the block's last node are not read, because ancestors come first in node order.

Stage 2 (`merge_splits`) weights the splits of a row by their log-sum-exp. These are in base 2
(FlashAttention uses natural logarithms).

With few rows and splits, a second launch takes longer than the merge. So there (IN_PLACE) the program that
ends last among the splits of its block merges them (`_merge_rows`). Programs count themselves; the last
one sets the counter back to zero, so that the next launch, or replay of a captured graph, starts from
zero. Why the last one reads what the others wrote (PTX memory model):

1. Each program stores its partial sums, then all of its threads meet at a barrier (`tl.debug_barrier`),
   then one thread adds 1 to the counter with acquire-release order at GPU scope. The barrier orders the
   stores of all threads before that addition, and the release is cumulative: it publishes them too.
2. Additions to one counter are a chain of read-modify-writes, so the last one, which reads `splits - 1`,
   synchronises with all before it: their stores happen before what follows it.
3. Triton hands the result of the addition to the other threads through shared memory, behind a barrier. So
   their loads of partial sums follow the acquisition. They bypass the L1 cache (`.cg`), which need not be
   coherent.
4. No program waits for another one: the order in which programs run does not matter. The counter is set
   back after its last addition, and the next kernel on the stream begins after this one has ended.

Lengths and tree come from the buffer of `pass_arrays`, so a captured graph uses its current contents. A
split without keys writes only its log-sum-exp, and stage 2 does not read its rows.

The scheme is FlashDecoding's split of the keys (Dao et al. 2023; the online softmax of FlashAttention,
arXiv:2205.14135) with grouped heads packed into rows, and a tree where decoding has one row.
"""

from typing import no_type_check

import triton
import triton.language as tl

HIDDEN: tl.constexpr = tl.constexpr(-1.0e30)
"""Score of a hidden key, and log-sum-exp of no keys: finite, so that no difference is NaN."""

TINY: tl.constexpr = tl.constexpr(1.0e-30)
"""Replaces a zero denominator where the quotient is not used; real sums of exponentials are at least 1."""

MIN_CHUNK: tl.constexpr = tl.constexpr(256)
"""Splits are multiples of this many keys, unless they are merged in place; a multiple of every BLOCK_N."""

MASKED_N: tl.constexpr = tl.constexpr(64)
"""Largest number of keys of a tile with a mask of its own: where the prefix ends, and of the tree."""

MERGED_AT_ONCE: tl.constexpr = tl.constexpr(4096)
"""Largest number of sums (rows x BLOCK_D) that a program merges at once: more would spill."""

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)

# `no_type_check` stops import hooks that decorate every function from touching what Triton compiles.


@triton.jit
@no_type_check
def _tanh(x):
    """tanh to a few units in the last place; a polynomial near 0, where 1 - exp(-2x) would cancel."""
    size = tl.abs(x)
    square = x * x
    series = 1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))
    near = x * (1.0 - square * series)
    decay = tl.exp2(size * (-2.0 * LOG2E))
    far = (1.0 - decay) / (1.0 + decay)
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
@no_type_check
def _slots(cols, inside, table, stride_page, stride_slot, PAGE: tl.constexpr):
    """Offsets at which the rows of these keys begin: in their pages, or one row after another."""
    if PAGE == 0:
        at = cols.to(tl.int64) * stride_slot
    else:
        page = tl.load(table + cols // PAGE, mask=inside, other=0)
        at = page.to(tl.int64) * stride_page + (cols % PAGE) * stride_slot
    return at


@triton.jit
@no_type_check
def _tile(
    q, acc, high, total, k_head, v_head, k_at, v_at, in_keys, in_k, visible,
    inner, outer,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BOUNDED: tl.constexpr, MASKED: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Pass one tile of keys through the online softmax; BOUNDED masks the loads, MASKED the scores."""
    dims = tl.arange(0, BLOCK_D)
    k_ptrs = k_head + k_at[None, :] + dims[:, None]
    v_ptrs = v_head + v_at[:, None] + dims[None, :]
    if BOUNDED:
        k = tl.load(k_ptrs, mask=in_keys[None, :] & in_k[:, None], other=0.0)
        v = tl.load(v_ptrs, mask=in_keys[:, None] & in_k[None, :], other=0.0)
    elif DIM != BLOCK_D:
        k = tl.load(k_ptrs, mask=in_k[:, None], other=0.0)
        v = tl.load(v_ptrs, mask=in_k[None, :], other=0.0)
    else:
        k = tl.load(k_ptrs)
        v = tl.load(v_ptrs)
    if INTERPRETED:  # the interpreter multiplies bfloat16 wrongly
        scores = tl.dot(q.to(tl.float32), k.to(tl.float32), input_precision="ieee")
    else:
        scores = tl.dot(q, k, input_precision="ieee")
    if SOFTCAP or MASKED:
        scores = scores * inner
        if SOFTCAP:
            scores = _tanh(scores) * outer
        if MASKED:
            scores = tl.where(visible, scores, HIDDEN)
        higher = tl.maximum(high, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
    else:  # scaled after the maximum, and in the same instruction as the difference
        higher = tl.maximum(high, tl.max(scores, 1) * inner)
        weights = tl.exp2(scores * inner - higher[:, None])
    fade = tl.exp2(high - higher)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    narrow = weights.to(v.dtype)
    if INTERPRETED:
        acc = acc + tl.dot(narrow.to(tl.float32), v.to(tl.float32), input_precision="ieee")
    else:
        acc = tl.dot(narrow, v, acc, input_precision="ieee")
    return acc, higher, total


@triton.jit
@no_type_check
def over_keys(
    q, node, rank, position, prefix, size, of_nodes, nodes, k_base, v_base, table,
    k_page, k_slot, v_page, v_slot, sinks, in_rows, split, splits, inner, outer, window,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK: tl.constexpr, PAGE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Sums of a block of rows over one split of their sequence's keys; and whether it has any.

    A split is a multiple of CHUNK keys, which is a multiple of BLOCK_N. `position` is read with a window
    only, `sinks` (pointers) with sinks only.
    """
    in_k = tl.arange(0, BLOCK_D) < DIM
    first = 0
    oldest = node  # read under WINDOW only
    if WINDOW:
        first = tl.maximum(prefix - window + 1, 0) // BLOCK_N * BLOCK_N
        oldest = position - window
    chunk = tl.cdiv(tl.cdiv(prefix + size - first, splits), CHUNK) * CHUNK
    begin = first + split * chunk
    last = tl.max(node)
    stop = tl.where(last >= 0, tl.minimum(begin + chunk, prefix + last + 1), begin)
    full = prefix // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    high = tl.full([BLOCK_M], HIDDEN, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    some = begin < stop
    if SINKS:
        if split == 0:
            sink = tl.load(sinks, mask=in_rows, other=0.0).to(tl.float32)
            high = sink * LOG2E
            total = tl.full([BLOCK_M], 1.0, tl.float32)
        some = some | (split == 0)

    cols = tl.arange(0, BLOCK_N)
    for start in range(begin, tl.minimum(stop, full), BLOCK_N):
        keys = start + cols
        inside = keys < prefix
        k_at = _slots(keys, inside, table, k_page, k_slot, PAGE)
        v_at = _slots(keys, inside, table, v_page, v_slot, PAGE)
        visible = keys[None, :] > oldest[:, None]
        acc, high, total = _tile(
            q, acc, high, total, k_base, v_base, k_at, v_at, inside, in_k, visible, inner, outer,
            DIM, BLOCK_D, False, WINDOW, SOFTCAP, INTERPRETED,
        )  # fmt: skip
    # Few keys remain, and a mask needs registers: in tiles of at most MASKED_N keys.
    masked_n: tl.constexpr = MASKED_N if MASKED_N < BLOCK_N else BLOCK_N
    few = tl.arange(0, masked_n)
    for start in range(tl.maximum(begin, full), stop, masked_n):
        keys = start + few
        inside = keys < prefix + size
        of_prefix = keys < prefix
        at_node = inside & (keys >= prefix)
        key = keys - prefix
        key_rank = tl.load(of_nodes + key, mask=at_node, other=0)
        key_end = tl.load(of_nodes + nodes + key, mask=at_node, other=-1)
        above = (key_rank[None, :] <= rank[:, None]) & (rank[:, None] < key_end[None, :])
        visible = of_prefix[None, :] | above
        if WINDOW:
            key_depth = tl.load(of_nodes + 2 * nodes + key, mask=at_node, other=0)
            key_position = tl.where(of_prefix, keys, prefix + key_depth)
            visible = visible & (key_position[None, :] > oldest[:, None])
        k_at = _slots(keys, inside, table, k_page, k_slot, PAGE)
        v_at = _slots(keys, inside, table, v_page, v_slot, PAGE)
        acc, high, total = _tile(
            q, acc, high, total, k_base, v_base, k_at, v_at, inside, in_k, visible, inner, outer,
            DIM, BLOCK_D, True, True, SOFTCAP, INTERPRETED,
        )  # fmt: skip
    return acc, high, total, some


@triton.jit
@no_type_check
def write_sums(
    acc, high, total, some, real, in_rows, out_at, part_ptr, lse_ptr, line, OUT: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Write the output of a block of rows, or with splits its partial sums, at their lines."""
    dims = tl.arange(0, BLOCK_D)
    in_k = dims < DIM
    if not SPLIT:
        out = tl.where(real[:, None], acc / tl.maximum(total, TINY)[:, None], 0.0)
        ptrs = out_at[:, None] + dims[None, :]
        tl.store(ptrs, out.to(OUT), mask=in_rows[:, None] & in_k[None, :])
    else:
        seen = total > 0
        lse = tl.where(seen, high + tl.log2(tl.where(seen, total, 1.0)), HIDDEN)
        tl.store(lse_ptr + line, lse, mask=in_rows)
        if some:
            ptrs = part_ptr + line[:, None] * DIM + dims[None, :]
            part = acc / tl.maximum(total, TINY)[:, None]
            tl.store(ptrs, part, mask=in_rows[:, None] & in_k[None, :])


@triton.jit
@no_type_check
def _merge_rows(
    part_ptr, lse_ptr, out_base, of_rows, column, at, rows, splits, first_head, out_head, out_row,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of the rows `at` of a column of the grid, and write their output."""
    lines = rows * GROUP
    row, member = at // GROUP, at % GROUP
    in_rows = row < rows
    dims = tl.arange(0, BLOCK_D)
    in_k = dims < DIM
    line = column * splits * lines + at
    high = tl.full([ROWS], HIDDEN, tl.float32)
    for split in range(splits):
        lse = tl.load(
            lse_ptr + line + split * lines, mask=in_rows, other=HIDDEN, cache_modifier=".cg"
        )
        high = tl.maximum(high, lse)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for split in range(splits):
        of_split = line + split * lines
        lse = tl.load(lse_ptr + of_split, mask=in_rows, other=HIDDEN, cache_modifier=".cg")
        # Splits without keys have the log-sum-exp of no keys, and their rows were never written.
        weights = tl.where(lse > HIDDEN, tl.exp2(lse - high), 0.0)
        part = tl.load(
            part_ptr + of_split[:, None] * DIM + dims[None, :],
            mask=(weights > 0)[:, None] & in_k[None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        acc = acc + part * weights[:, None]
        total = total + weights
    node = tl.load(of_rows + row, mask=in_rows, other=-1)
    out_at = out_base + row.to(tl.int64) * out_row + (first_head + member).to(tl.int64) * out_head
    write_sums(
        acc, high, total, True, node >= 0, in_rows, out_at, part_ptr, lse_ptr, line,
        out_base.dtype.element_ty, DIM, BLOCK_D, False,
    )  # fmt: skip


# Not specialised: values that change from step to step would trigger recompilation by divisibility.
@triton.jit(
    do_not_specialize=[
        "arrays_batch", "table_batch", "rows", "nodes", "kv_heads", "splits", "window"
    ]
)  # fmt: skip
@no_type_check
def attend_split(
    q_ptr, k_ptr, v_ptr, out_ptr, part_ptr, lse_ptr, arrays_ptr, counters_ptr, sinks_ptr, table_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_slot, v_batch, v_head, v_slot,
    out_batch, out_head, out_row, arrays_batch, table_batch,
    rows, nodes, kv_heads, splits, inner, outer, window,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    IN_PLACE: tl.constexpr, PAGE: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attention of one block of rows over one split of the keys.

    Grid: (blocks of rows, kv heads x batch, splits). With IN_PLACE, the last program of a block merges
    its splits; there is a counter for each block and column of the grid, and all are zero. `inner` turns
    scores into base-2 exponents; with a softcap it turns them into the argument of tanh, and `outer`
    turns the result into exponents.
    """
    head = tl.program_id(1) % kv_heads
    sequence = (tl.program_id(1) // kv_heads).to(tl.int64)
    split = tl.program_id(2)
    arrays = arrays_ptr + sequence * arrays_batch
    prefix, size = tl.load(arrays), tl.load(arrays + 1)
    of_rows, of_nodes = arrays + 2, arrays + 2 + 3 * rows

    offs = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row, member = offs // GROUP, offs % GROUP
    in_rows = row < rows
    node = tl.load(of_rows + row, mask=in_rows, other=-1)
    rank = tl.load(of_rows + rows + row, mask=in_rows, other=-1)
    dims = tl.arange(0, BLOCK_D)
    in_k = dims < DIM
    q_head_of = (head * GROUP + member).to(tl.int64)
    q_at = q_ptr + sequence * q_batch + q_head_of * q_head + row.to(tl.int64) * q_row
    q = tl.load(q_at[:, None] + dims[None, :], mask=in_rows[:, None] & in_k[None, :], other=0.0)

    position = node  # read under WINDOW only
    if WINDOW:
        position = prefix + tl.load(of_rows + 2 * rows + row, mask=in_rows, other=0)
    table = table_ptr
    k_base = k_ptr + head.to(tl.int64) * k_head
    v_base = v_ptr + head.to(tl.int64) * v_head
    if PAGE == 0:
        k_base += sequence * k_batch
        v_base += sequence * v_batch
    else:
        table += sequence * table_batch

    acc, high, total, some = over_keys(
        q, node, rank, position, prefix, size, of_nodes, nodes, k_base, v_base, table,
        k_batch, k_slot, v_batch, v_slot, sinks_ptr + q_head_of, in_rows, split, splits,
        inner, outer, window,
        DIM, BLOCK_D, BLOCK_M, BLOCK_N, CHUNK, PAGE, SOFTCAP, WINDOW, SINKS, INTERPRETED,
    )  # fmt: skip
    out_at = out_ptr + sequence * out_batch + q_head_of * out_head + row.to(tl.int64) * out_row
    line = (tl.program_id(1).to(tl.int64) * splits + split) * (rows * GROUP) + offs
    write_sums(
        acc, high, total, some, node >= 0, in_rows, out_at, part_ptr, lse_ptr, line,
        out_ptr.dtype.element_ty, DIM, BLOCK_D, SPLIT,
    )  # fmt: skip
    if IN_PLACE:
        counter = counters_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.debug_barrier()
        ended = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if ended == splits - 1:
            column = tl.program_id(1).to(tl.int64)
            out_base = out_ptr + sequence * out_batch
            most: tl.constexpr = MERGED_AT_ONCE // BLOCK_D
            part_rows: tl.constexpr = most if most < BLOCK_M else BLOCK_M
            # In parts, so that nothing of this is held in registers before.
            for start in range(0, BLOCK_M, part_rows):
                at = tl.program_id(0) * BLOCK_M + start + tl.arange(0, part_rows)
                _merge_rows(
                    part_ptr, lse_ptr, out_base, of_rows, column, at, rows, splits, head * GROUP,
                    out_head, out_row, GROUP, DIM, BLOCK_D, part_rows,
                )  # fmt: skip
            tl.store(counter, 0)


@triton.jit(do_not_specialize=["arrays_batch", "rows", "kv_heads", "splits"])
@no_type_check
def merge_splits(
    part_ptr, lse_ptr, out_ptr, arrays_ptr,
    out_batch, out_head, out_row, arrays_batch, rows, kv_heads, splits,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one row by `2 ** (lse - max)`. Grid: (rows x group, kv heads x batch)."""
    line, column = tl.program_id(0), tl.program_id(1)
    head = column % kv_heads
    sequence = (column // kv_heads).to(tl.int64)
    row, member = line // GROUP, line % GROUP
    node = tl.load(arrays_ptr + sequence * arrays_batch + 2 + row)
    offs, dims = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    first = column.to(tl.int64) * splits
    out = tl.zeros([BLOCK_D], tl.float32)
    high = tl.max(tl.full([BLOCK_S], HIDDEN, tl.float32), 0)
    total = tl.sum(tl.zeros([BLOCK_S], tl.float32), 0)
    for start in range(0, splits, BLOCK_S):
        at = (first + start + offs) * (rows * GROUP) + line
        lse = tl.load(lse_ptr + at, mask=start + offs < splits, other=HIDDEN)
        higher = tl.maximum(high, tl.max(lse, 0))
        # Splits without keys have the log-sum-exp of no keys, and their rows were never written.
        weights = tl.where(lse > HIDDEN, tl.exp2(lse - higher), 0.0)
        part = tl.load(
            part_ptr + at[:, None] * DIM + dims[None, :],
            mask=(weights > 0)[:, None] & (dims < DIM)[None, :],
            other=0.0,
        )
        fade = tl.exp2(high - higher)
        out = out * fade + tl.sum(part * weights[:, None], 0)
        total = total * fade + tl.sum(weights, 0)
        high = higher
    out = tl.where(node >= 0, out / tl.maximum(total, TINY), 0.0)
    out_at = out_ptr + sequence * out_batch + (head * GROUP + member).to(tl.int64) * out_head
    ptrs = out_at + row.to(tl.int64) * out_row + dims
    tl.store(ptrs, out.to(out_ptr.dtype.element_ty), mask=dims < DIM)


INTERPRETED = not isinstance(attend_split, triton.JITFunction)
"""Whether the kernels run on CPU tensors, because TRITON_INTERPRET=1 was set before this import."""
