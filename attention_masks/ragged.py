"""Dense masks of several token trees: one in each sequence of a batch, or all after one prefix.

In a batch (`ragged_mask`) each sequence has its own tree and prefix length. Its key slots are, from
the left, its `prefix_len` cached keys, one slot for each of its nodes, and padding; its rows are the
queried nodes, then padding. In a forest (`forest`) several trees, from several drafters for example,
follow one shared prefix of one sequence and are verified in one pass.

Windows are over positions, `prefix_len + depth`, as in `dense_mask`.

Not covered: padding on the left, paged keys, sinks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_masks._inputs import checked_prefix_len, checked_rows, checked_window
from attention_masks.dense import dense_mask
from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology


def ragged_mask(
    trees: Sequence[Topology],
    prefix_lens: Sequence[int],
    *,
    rows: Sequence[Sequence[int] | None] | None = None,
    window: int | None = None,
) -> Bool[Tensor, "batch max_rows max_keys"]:
    """Which key slots each queried node of each sequence may attend to: True is visible.

    A padded slot is hidden from all rows. A padded row sees nothing, so its softmax is NaN: for
    attention that cannot handle such rows, use `ragged_additive_mask`.

    Args:
        trees: tree of the nodes whose keys are present, one for each sequence, all on one device.
        prefix_lens: number of cached keys before node 0, for each sequence.
        rows: the queried nodes of each sequence, or None for all its nodes; None queries all nodes of all.
        window: keys that are `window` or more positions before a row are hidden from it; None hides none.

    Returns:
        Mask `[len(trees), max_rows, max_keys]`: the largest number of rows, and the largest
        `prefix_len + tree.size`. Row r of sequence b is its node `rows[b][r]`.

    Raises:
        InvalidInput: if the lengths or the devices differ, or a value is out of range; names the
            sequence.

    Example:
        >>> from attention_masks import topology
        >>> ragged_mask([topology([-1, 0, 0]), topology([-1])], [1, 2]).int()
        tensor([[[1, 1, 0, 0],
                 [1, 1, 1, 0],
                 [1, 1, 0, 1]],
        <BLANKLINE>
                [[1, 1, 1, 0],
                 [0, 0, 0, 0],
                 [0, 0, 0, 0]]], dtype=torch.int32)
    """
    batch, window = checked_batch(trees, prefix_lens, rows), checked_window(window)
    shape = max(len(s.rows) for s in batch), max(s.prefix_len + s.tree.size for s in batch)
    mask = torch.zeros((len(batch), *shape), dtype=torch.bool, device=batch[0].tree.device)
    for line, (tree, prefix_len, nodes) in zip(mask, batch, strict=True):
        tree_mask = dense_mask(tree, prefix_len, rows=nodes, window=window)
        line[: tree_mask.shape[0], : tree_mask.shape[1]] = tree_mask
    return mask


def ragged_additive_mask(
    trees: Sequence[Topology],
    prefix_lens: Sequence[int],
    *,
    rows: Sequence[Sequence[int] | None] | None = None,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch max_rows max_keys"]:
    """`ragged_mask` in additive form: 0 is visible, the lowest finite number of `dtype` is hidden.

    Unlike in `ragged_mask`, a padded row sees every slot, padding included, so that its softmax is
    finite; discard its output. This requires finite keys and values in padded slots, such as zeros.

    Args:
        trees: see `ragged_mask`.
        prefix_lens: see `ragged_mask`.
        rows: see `ragged_mask`.
        window: see `ragged_mask`.
        dtype: floating-point dtype of the scores.

    Returns:
        Mask `[len(trees), max_rows, max_keys]` in `dtype`; for attention over heads pass
        `mask[:, None]`.

    Raises:
        InvalidInput: see `ragged_mask`.
    """
    visible = ragged_mask(trees, prefix_lens, rows=rows, window=window)
    visible |= ~visible.any(dim=2, keepdim=True)
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=visible.device)
    return torch.where(visible, hidden.new_zeros(()), hidden)


@dataclass(frozen=True, eq=False)
class Forest:
    """Several trees after one prefix.

    Attributes:
        mask: rows are the nodes of all trees, one tree after another; columns are the prefix, then the
            same nodes.
        offsets: row of each tree's root, then the number of all nodes: tree i has the rows
            `offsets[i]..offsets[i + 1] - 1`, and its keys are these plus the prefix length.
    """

    mask: Bool[Tensor, "nodes prefix_and_nodes"]
    offsets: tuple[int, ...]


def forest(trees: Sequence[Topology], prefix_len: int, *, window: int | None = None) -> Forest:
    """The mask of trees that share only a prefix: each tree sees the prefix and itself.

    Each tree has its own root, at position `prefix_len`, so the last committed token is computed once
    for each tree. If the roots are the same token, merge the trees under one root into one `topology`
    to compute it only once.

    Args:
        trees: the trees, in order, all on one device.
        prefix_len: number of cached keys before the first root.
        window: keys that are `window` or more positions before a row are hidden from it; None hides none.

    Returns:
        The mask over all nodes, and the offset of each tree.

    Raises:
        InvalidInput: if there is no tree, the devices differ, or `prefix_len` or `window` is out of
            range.

    Example:
        >>> from attention_masks import topology
        >>> both = forest([topology([-1, 0, 0]), topology([-1, 0])], prefix_len=1)
        >>> both.offsets
        (0, 3, 5)
        >>> both.mask.int()
        tensor([[1, 1, 0, 0, 0, 0],
                [1, 1, 1, 0, 0, 0],
                [1, 1, 0, 1, 0, 0],
                [1, 0, 0, 0, 1, 0],
                [1, 0, 0, 0, 1, 1]], dtype=torch.int32)
    """
    trees, window = _checked_trees(trees), checked_window(window)
    prefix_len = checked_prefix_len(prefix_len)
    offsets = [0]
    for tree in trees:
        offsets.append(offsets[-1] + tree.size)
    shape = offsets[-1], prefix_len + offsets[-1]
    mask = torch.zeros(shape, dtype=torch.bool, device=trees[0].device)
    for tree, start in zip(trees, offsets, strict=False):
        tree_mask = dense_mask(tree, prefix_len, window=window)
        lines = mask[start : start + tree.size]
        lines[:, :prefix_len] = tree_mask[:, :prefix_len]
        lines[:, prefix_len + start : prefix_len + start + tree.size] = tree_mask[:, prefix_len:]
    return Forest(mask, tuple(offsets))


class OneOfBatch(NamedTuple):
    """One sequence of a batch, checked."""

    tree: Topology
    prefix_len: int
    rows: range | tuple[int, ...]


def checked_batch(
    trees: Sequence[Topology],
    prefix_lens: Sequence[int],
    rows: Sequence[Sequence[int] | None] | None,
) -> list[OneOfBatch]:
    """Check the sequences of a batch; error messages name the sequence."""
    trees = _checked_trees(trees)
    rows = (None,) * len(trees) if rows is None else rows
    for name, values in (("prefix_lens", prefix_lens), ("rows", rows)):
        if len(values) != len(trees):
            raise InvalidInput(
                f"{len(trees)} trees, but {name} has {len(values)} entries: it must have one for each tree"
            )
    batch = []
    for i, (tree, prefix_len, nodes) in enumerate(zip(trees, prefix_lens, rows, strict=True)):
        try:
            batch.append(
                OneOfBatch(tree, checked_prefix_len(prefix_len), checked_rows(tree, nodes))
            )
        except InvalidInput as error:
            raise InvalidInput(f"sequence {i}: {error}") from None
    return batch


def _checked_trees(trees: Sequence[Topology]) -> Sequence[Topology]:
    if not trees:
        raise InvalidInput("trees is empty: give at least one")
    for i, tree in enumerate(trees):
        if tree.device != trees[0].device:
            raise InvalidInput(
                f"trees[{i}] is on {tree.device} and trees[0] on {trees[0].device}, "
                "but they must be on one device"
            )
    return trees
