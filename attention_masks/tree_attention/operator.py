"""Tree attention as an operator of torch, `treespec::tree_attention`, so that a compiler can pass over it.

`torch.compile` cannot look into the host code of the kernel, which chooses tiles and launches. As an
operator it is one node of a graph: tensors go in, one tensor comes out. All that changes from step to
step is in tensors: the tree is in the buffer of `PassArrays`, whose widths follow from the shapes. So
code that was compiled once serves every tree, prefix and cache.

On CUDA and in Triton's interpreter the operator is the kernel. On a CPU without the interpreter it is the
reference on the tree that the buffer describes, in any floating-point dtype: slow, for tests.

Not covered: gradients, `vmap`, and a formula for `torch.utils.flop_counter`, which counts nothing for this
operator. A dispatch mode that looks at each operation, such as one that finds what waits for the device,
sees the operator and not what the kernel does inside: it waits for nothing. `counters` is scratch, zero
before and after, and therefore declared as not mutated; passes that run at the same time must not share it.
"""

import os

import torch
from torch import Tensor

from attention_masks.topology import topology
from attention_masks.tree_attention.buffered_pass import BufferedPass
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.pass_arrays import HEADER, PassArrays
from attention_masks.tree_attention.reference import reference
from attention_masks.tree_attention.tree_pass import TreePass
from attention_masks.tree_attention.triton import triton


@torch.library.custom_op("treespec::tree_attention", mutates_args=())
def tree_attention_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    arrays: Tensor,
    counters: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    """The attention of one layer; rows of padding give 0.

    `query`: `[B, Hq, T, D]`. `key` and `value`: `[B, Hkv, S, D]`, all slots of a cache; slots behind the
    nodes may hold anything. `arrays`: the buffer of `PassArrays`, for T rows. `counters`: those of the pass
    (`AnyPass.counters`), all zero before and after. `sinks`, `scale`, `softcap`, `window`: as in `Options`.
    Returns `[B, T, Hq, D]` in the query's dtype, contiguous: the rows that the next product reads.
    """
    options = Options(scale, softcap, window, sinks)
    rows = query.shape[2]
    given = PassArrays(arrays, rows, (arrays.shape[1] - HEADER) // 3 - rows)
    if query.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        tree_pass = BufferedPass(given, key.shape[2], counters)
        return triton(query, key, value, tree_pass, options).transpose(1, 2)
    out = torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    for i in range(len(query)):
        tree_pass = _described(arrays[i % len(arrays)], given)
        count, own = tree_pass.row_count, slice(i, i + 1)
        q, k, v = query[own, :, :count], key[own], value[own]
        out[own, :count] = reference(q, k, v, tree_pass, options).transpose(1, 2)
    return out


@tree_attention_operator.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    arrays: Tensor,
    counters: Tensor,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
    window: int | None,
) -> Tensor:
    batch, heads, rows, dim = query.shape
    return query.new_empty(batch, rows, heads, dim)


def _described(line: Tensor, arrays: PassArrays) -> TreePass:
    """The pass that a line of the buffer describes, on the CPU; padding follows all of its rows."""
    numbers = line.tolist()
    prefix_len, size = numbers[:HEADER]
    of_nodes = HEADER + 3 * arrays.rows
    rows = [node for node in numbers[HEADER : HEADER + arrays.rows] if node >= 0]
    pre = numbers[of_nodes:][:size]
    end = numbers[of_nodes + arrays.nodes :][:size]
    above = [[j for j in range(i) if pre[j] < pre[i] < end[j]] for i in range(size)]
    return TreePass(topology([max(nodes, default=-1) for nodes in above]), prefix_len, rows)
