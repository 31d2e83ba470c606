"""The input checks of `attend`. They run in every layer, so they take only a few microseconds."""

import math

import torch
from torch import Tensor

from attention_masks.errors import InvalidInput
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, tree_pass: AnyPass, block_table: Tensor | None
) -> None:
    """Refuse tensors that do not fit each other or the pass."""
    q_shape, k_shape = q.shape, k.shape
    if len(q_shape) != 4 or len(k_shape) != 4:
        raise InvalidInput(
            f"q is {list(q_shape)} and k {list(k_shape)}, but q must be "
            "[batch, q_heads, rows, head_dim] and k, v [batch, kv_heads, slots, head_dim]"
        )
    if v.shape != k_shape:
        raise InvalidInput(
            f"k is {list(k_shape)} and v {list(v.shape)}, but they must have the same shape"
        )
    batch, slots = k_shape[0], k_shape[2]
    if block_table is not None:
        batch, slots = _paged(k, block_table)
        if block_table.device.type == "cpu":
            _check_pages(block_table, tree_pass, pages=k_shape[0], page=k_shape[2])
    if q_shape[0] != batch or q_shape[3] != k_shape[3]:
        table = "" if block_table is None else f", block_table {list(block_table.shape)}"
        raise InvalidInput(
            f"q is {list(q_shape)} and k {list(k_shape)}{table}, "
            "but batch and head_dim must be equal"
        )
    if not q_shape[1] or not k_shape[1] or not q_shape[3]:
        raise InvalidInput(
            f"q is {list(q_shape)} and k {list(k_shape)}, but heads and head_dim must be above 0"
        )
    if q_shape[1] % k_shape[1]:
        raise InvalidInput(
            f"q has {q_shape[1]} heads and k {k_shape[1]}, but q_heads must be a multiple of kv_heads"
        )
    if tree_pass.batch not in (1, batch) or batch == 0:
        raise InvalidInput(
            f"a pass of {tree_pass.batch} sequences for a batch of {batch}: give one tree for all, or "
            "one for each sequence"
        )
    if q_shape[2] != tree_pass.row_count:
        raise InvalidInput(
            f"q holds {q_shape[2]} rows, but {_rows(tree_pass)} are queried: "
            "pass rows= if q holds only some nodes"
        )
    if slots < tree_pass.key_count:
        raise InvalidInput(f"k has {slots} slots, but {_keys(tree_pass)} keys are needed")
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES):
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise InvalidInput(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, but they must have one dtype, one of {known}"
        )
    if not q.device == k.device == v.device:
        raise InvalidInput(
            f"q, k, v are on {q.device}, {k.device}, {v.device}, but must be on one device"
        )
    if block_table is not None and block_table.device != q.device:
        raise InvalidInput(f"block_table is on {block_table.device}, but q on {q.device}")


def check_numbers(scale: float | None, softcap: float | None) -> None:
    """Refuse a scale or softcap that is not a usable number."""
    if scale is not None and not 0 <= scale < math.inf:  # kernels scale after the maximum
        raise InvalidInput(
            f"scale = {scale}, but it multiplies the scores: it must be finite and not negative"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise InvalidInput(
            f"softcap = {softcap}, but it bounds the scores: it must be above 0, or None"
        )


def check_options(q: Tensor, options: Options) -> None:
    """Refuse sinks that do not fit the queries."""
    sinks = options.sinks
    if sinks is None:
        return
    if sinks.shape != (q.shape[1],) or not sinks.is_floating_point():
        raise InvalidInput(
            f"sinks are {sinks.dtype} {list(sinks.shape)}, but must be a floating-point score for each of "
            f"the {q.shape[1]} query heads"
        )
    if sinks.device != q.device:
        raise InvalidInput(f"sinks are on {sinks.device}, but q on {q.device}")


def _paged(k: Tensor, block_table: Tensor) -> tuple[int, int]:
    """The number of sequences, and the number of slots of each; refuses a malformed table."""
    if block_table.ndim != 2 or block_table.dtype != torch.int32 or block_table.stride(1) != 1:
        raise InvalidInput(
            f"block_table is {block_table.dtype} {list(block_table.shape)}, but must be int32 "
            "[batch, blocks], contiguous along blocks"
        )
    return block_table.shape[0], block_table.shape[1] * k.shape[2]


def _check_pages(block_table: Tensor, tree_pass: AnyPass, pages: int, page: int) -> None:
    """Refuse page numbers out of range among those that a sequence uses; later ones may be anything."""
    counts = tree_pass.key_counts(len(block_table))
    for sequence, (line, keys) in enumerate(zip(block_table.tolist(), counts, strict=True)):
        for block, number in enumerate(line[: -(-keys // page)] if page else ()):
            if not 0 <= number < pages:
                raise InvalidInput(
                    f"block_table[{sequence}, {block}] = {number}, but the pages are 0..{pages - 1}"
                )


def _rows(tree_pass: AnyPass) -> str:
    if isinstance(tree_pass, TreePass):
        return f"{tree_pass.row_count} of the tree's {tree_pass.topology.size} nodes"
    return f"{tree_pass.row_count} rows of the largest tree"


def _keys(tree_pass: AnyPass) -> str:
    if isinstance(tree_pass, TreePass):
        parts = f"{tree_pass.prefix_len} + {tree_pass.topology.size}"
        return f"prefix_len + nodes = {parts} = {tree_pass.key_count}"
    return f"for the longest sequence {tree_pass.key_count}"
