"""The mask of a token tree for `torch.nn.attention.flex_attention`: a mask function and a block mask.

`mask_mod` decides for one row and one key from three integers per node. `block_mask` says for whole
tiles of rows and keys whether they are full (no mask is read), partial (`mask_mod` is called) or
empty (skipped). It is computed arithmetically: prefix tiles from the smallest and the largest depth
of the rows, and only tiles with nodes from a dense mask of rows x nodes. `create_block_mask` would
first make rows x keys booleans.

Rows may be folded: the query heads that share a key head are stacked, head by head, as in
`TreePass.bias`. Not covered: different trees in one batch, padding, sinks.
"""

from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import torch
from jaxtyping import Bool, Int32
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from attention_masks._inputs import (
    checked_integer,
    checked_prefix_len,
    checked_rows,
    checked_window,
)
from attention_masks.dense import dense_mask, of_nodes
from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`(batch, head, row, key) -> visible`, integer tensors in, a boolean tensor out."""


def mask_mod(
    topology: Topology,
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    window: int | None = None,
    group: int = 1,
) -> MaskMod:
    """The mask in FlexAttention's form: a function of batch, head, row and key.

    Batch and head are ignored. Everything that changes from pass to pass, including the prefix length,
    is read from tensors, so a compiled FlexAttention need not be recompiled.

    Args:
        topology: tree of the nodes whose keys are present; the function takes tensors on its device.
        prefix_len: number of cached keys before node 0.
        rows: the queried nodes, in any order; all of them by default.
        window: keys that are `window` or more positions before a row are hidden from it; None hides none.
        group: how often the rows are repeated: row `g * len(rows) + t` is row t of head g.

    Returns:
        A function for rows `0..group * len(rows) - 1` and keys from 0; keys after the nodes are
        hidden. Its arguments may be any integer tensors that broadcast.

    Raises:
        InvalidInput: if `prefix_len`, `rows`, `window` or `group` is out of range.

    Example:
        >>> from attention_masks import topology
        >>> visible = mask_mod(topology([-1, 0, 0, 1]), prefix_len=2)
        >>> zero, row, key = torch.tensor(0), torch.arange(4)[:, None], torch.arange(6)
        >>> visible(zero, zero, row, key).int()
        tensor([[1, 1, 1, 0, 0, 0],
                [1, 1, 1, 1, 0, 0],
                [1, 1, 1, 0, 1, 0],
                [1, 1, 1, 1, 0, 1]], dtype=torch.int32)
    """
    prefix_len, window = checked_prefix_len(prefix_len), checked_window(window)
    nodes, group = checked_rows(topology, rows), _at_least_one("group", group)
    pre, end, depth, size = topology.pre, topology.end, topology.depth, topology.size
    rank, level = (of_nodes(values, nodes).repeat(group) for values in (pre, depth))
    start = torch.full((), prefix_len, dtype=torch.int32, device=topology.device)
    last = torch.full((), size - 1, dtype=torch.int32, device=topology.device)

    @no_type_check  # FlexAttention reads the functions' names and code: a type-checking wrapper hides them
    def visible(batch, head, row, key):
        offset = key - start
        node = torch.minimum(offset.clamp(min=0), last)
        row_rank = rank[row]
        is_above = (pre[node] <= row_rank) & (row_rank < end[node])
        return (offset < 0) | ((offset <= last) & is_above)

    if window is None:
        return visible
    # A row sees positions from `oldest` on. A wider window hides nothing, but may exceed int32.
    oldest = level + (start - min(window, prefix_len + size) + 1)

    @no_type_check
    def visible_in_window(batch, head, row, key):
        offset = key - start
        node = torch.minimum(offset.clamp(min=0), last)
        position = torch.where(offset < 0, key, start + depth[node])
        return visible(batch, head, row, key) & (position >= oldest[row])

    return visible_in_window


def block_mask(
    topology: Topology,
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    window: int | None = None,
    group: int = 1,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """The tiles of the mask, for `flex_attention(q, k, v, block_mask=...)`.

    The tiles are those of `create_block_mask(mask_mod(...))`, with one difference: a tile that the
    last rows do not fill counts as full if all its existing rows see all of its keys. The prefix of a
    small tree is thus full too, where `create_block_mask` calls every tile partial.

    Args:
        topology: tree of the nodes whose keys are present; the mask is on its device.
        prefix_len: number of cached keys before node 0.
        rows: the queried nodes, in any order; all of them by default.
        window: see `mask_mod`.
        group: see `mask_mod`.
        block_size: rows and keys in a tile, or one number for both. The compiled kernel's own tiles
            must divide it.

    Returns:
        A mask for `group * len(rows)` rows and exactly `prefix_len + topology.size` keys, shared by
        all sequences and heads, with the tables that gradients need.

    Raises:
        InvalidInput: if `prefix_len`, `rows`, `window`, `group` or `block_size` is out of range.

    Example:
        >>> from attention_masks import topology
        >>> mask = block_mask(topology([-1, 0, 0, 1]), prefix_len=300, group=4)
        >>> mask.shape, mask.full_kv_num_blocks.item(), mask.kv_num_blocks.item()
        ((1, 1, 16, 304), 2, 1)
    """
    group, (row_block, key_block) = _at_least_one("group", group), _block_sizes(block_size)
    visible = mask_mod(topology, prefix_len, rows=rows, window=window, group=group)
    prefix_len, nodes = checked_prefix_len(prefix_len), checked_rows(topology, rows)
    row_count, key_count = group * len(nodes), prefix_len + topology.size
    row_blocks, key_blocks = -(-row_count // row_block), -(-key_count // key_block)
    slots = torch.arange(row_blocks * row_block, device=topology.device)
    folded = (slots.clamp(max=row_count - 1) % len(nodes)).view(row_blocks, row_block)

    # Nodes: how many each row sees in each tile, from the first tile that contains nodes.
    first = prefix_len // key_block
    to_nodes = dense_mask(topology, 0, rows=rows, window=window)
    before, after = prefix_len - first * key_block, key_blocks * key_block - key_count
    to_nodes = torch.nn.functional.pad(to_nodes, (before, after))
    seen = to_nodes.view(len(nodes), -1, key_block).sum(dim=2, dtype=torch.int32)[folded]
    fewest, most = seen.amin(dim=1), seen.amax(dim=1)

    # Prefix: a row at depth d sees the keys from prefix_len + d - window + 1 on.
    window = key_count if window is None else min(window, key_count)
    oldest = of_nodes(topology.depth, nodes)[folded] + (prefix_len - window + 1)
    start = torch.arange(0, key_blocks * key_block, key_block, device=topology.device)
    stop = (start + key_block).clamp(max=prefix_len)
    visible_to_some = stop > torch.maximum(start, oldest.amin(dim=1, keepdim=True))
    full = (start >= stop) | (start >= oldest.amax(dim=1, keepdim=True))

    visible_to_some[:, first:] |= most > 0
    prefix_keys = (stop - start).clamp(min=0)[first:]
    full[:, first:] &= fewest + prefix_keys == key_block
    partial = visible_to_some & ~full
    return _from_tiles(partial, full, (row_count, key_count), (row_block, key_block), visible)


def draw(mask: BlockMask) -> str:
    """Draw the tiles as text, one line for each block of rows: `#` full, `+` partial, `.` empty.

    `mask`: mask of one sequence and head, such as `block_mask` returns.

    Example:
        >>> from attention_masks import topology
        >>> print(draw(block_mask(topology([-1, 0, 0, 1]), prefix_len=9, block_size=2)))
        rows | keys
           0 | # # # # # + .
           2 | # # # # # + +
    """
    count, height = mask.kv_indices.shape[-1], mask.BLOCK_SIZE[0]
    lines = ["rows | keys"]
    for i in range(mask.kv_indices.shape[-2]):
        marks = ["."] * count
        for sign, counts, tiles in (
            ("+", mask.kv_num_blocks, mask.kv_indices),
            ("#", mask.full_kv_num_blocks, mask.full_kv_indices),
        ):
            if counts is not None and tiles is not None:
                for tile in tiles[0, 0, i, : counts[0, 0, i]].tolist():
                    marks[tile] = sign
        lines.append(f"{i * height:4} | {' '.join(marks)}")
    return "\n".join(lines)


def _from_tiles(
    partial: Bool[Tensor, "row_blocks key_blocks"],
    full: Bool[Tensor, "row_blocks key_blocks"],
    lengths: tuple[int, int],
    block_size: tuple[int, int],
    visible: MaskMod,
) -> BlockMask:
    """The mask with the flagged tiles. Makes the tables by key block itself: torch would take 2 ms."""
    mask = BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=block_size,
        mask_mod=visible,
        seq_lengths=lengths,
        compute_q_blocks=False,
    )
    mask.q_num_blocks, mask.q_indices = _listed(partial.T)
    mask.full_q_num_blocks, mask.full_q_indices = _listed(full.T)
    return mask


def _listed(
    flags: Bool[Tensor, "lines tiles"],
) -> tuple[Int32[Tensor, "1 1 lines"], Int32[Tensor, "1 1 lines tiles"]]:
    """The number of flagged tiles of each line, and the indices of all tiles, flagged ones first."""
    counts = flags.sum(dim=1, dtype=torch.int32)
    tiles = torch.argsort((~flags).to(torch.int32), dim=1, stable=True).to(torch.int32)
    return counts[None, None], tiles[None, None]


def _block_sizes(block_size: Any) -> tuple[int, int]:
    sizes = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    if len(sizes) != 2:
        raise InvalidInput(f"block_size = {block_size}, but it must be one number or two")
    return _at_least_one("block_size", sizes[0]), _at_least_one("block_size", sizes[1])


def _at_least_one(name: str, value: Any) -> int:
    number = checked_integer(name, value)
    if number < 1:
        raise InvalidInput(f"{name} = {value}, but it must be at least 1")
    return number
