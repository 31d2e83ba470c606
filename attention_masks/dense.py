"""Dense masks of a token tree after a prefix: boolean, or additive for transformers.

A row is a queried node, a column a key: first the `prefix_len` cached keys, then one key for each
node, in node order. A row sees the whole prefix, itself and its ancestors, but neither siblings nor
other branches. The position of a node is `prefix_len + depth`, so siblings share a position. A
sliding window is over these positions, as the `sliding_window` of transformers: a key is visible if
and only if `position of row - position of key < window`.

Not covered: several trees or different prefixes in one batch, padding, sinks.

`python -m attention_masks.dense` draws an example.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_masks._inputs import checked_dtype, checked_prefix_len, checked_rows, checked_window
from attention_masks.topology import Topology, topology


def dense_mask(
    topology: Topology,
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    window: int | None = None,
) -> Bool[Tensor, "rows prefix_and_nodes"]:
    """Which keys each queried node may attend to: True is visible.

    Args:
        topology: tree of the nodes whose keys are present; the mask is on its device.
        prefix_len: number of cached keys before node 0.
        rows: the queried nodes, in any order; all of them by default.
        window: keys that are `window` or more positions before a row are hidden from it; None hides none.

    Returns:
        Mask `[len(rows), prefix_len + topology.size]`. Every row sees at least itself.

    Raises:
        InvalidInput: if `prefix_len`, `rows` or `window` is out of range.
    """
    prefix_len, window = checked_prefix_len(prefix_len), checked_window(window)
    nodes = checked_rows(topology, rows)
    rank = of_nodes(topology.pre, nodes)[:, None]
    to_nodes = (topology.pre <= rank) & (rank < topology.end)
    if window is None:
        mask = to_nodes.new_ones((len(nodes), prefix_len + topology.size))
    else:
        window = min(
            window, prefix_len + topology.size
        )  # wider hides nothing, but may exceed int32
        depth = of_nodes(topology.depth, nodes)[:, None]
        to_nodes &= topology.depth > depth - window
        positions = torch.arange(prefix_len + topology.size, device=topology.device)
        mask = positions > depth + (prefix_len - window)
    mask[:, prefix_len:] = to_nodes
    return mask


def additive_mask(
    topology: Topology,
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "rows prefix_and_nodes"]:
    """`dense_mask` in additive form: 0 is visible, the lowest finite number of `dtype` is hidden.

    The number is *finite*, as in transformers. This form is safe in a model's own attention
    (`mask[None, None]`); eager attention would add a boolean mask to the scores.

    Args:
        topology: tree of the nodes whose keys are present; the mask is on its device.
        prefix_len: number of cached keys before node 0.
        rows: the queried nodes, in any order; all of them by default.
        window: see `dense_mask`.
        dtype: floating-point dtype of the scores.

    Returns:
        Mask `[len(rows), prefix_len + topology.size]` in `dtype`.

    Raises:
        InvalidInput: if `prefix_len`, `rows` or `window` is out of range.
    """
    dtype = checked_dtype(dtype)
    visible = dense_mask(topology, prefix_len, rows=rows, window=window)
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=topology.device)
    return torch.where(visible, hidden.new_zeros(()), hidden)


def draw(
    topology: Topology, mask: Bool[Tensor, "rows keys"], rows: Sequence[int] | None = None
) -> str:
    """Draw a mask as text: one line for each queried node, `#` visible, `.` hidden.

    `mask`: the result of `dense_mask`; the columns before the nodes are the prefix. `rows`: the nodes that
    it was made for; all of them by default.

    Example:
        >>> tree = topology([-1, 0, 0, 1])
        >>> print(draw(tree, dense_mask(tree, 3)))
        node depth | prefix | nodes
           0     0 | # # #  | # . . .
           1     1 | # # #  | # # . .
           2     1 | # # #  | # . # .
           3     2 | # # #  | # # . #
    """
    nodes = checked_rows(topology, rows)
    prefix_len = mask.shape[1] - topology.size
    width = max(len("prefix"), 2 * prefix_len - 1)
    lines = [f"node depth | {'prefix':<{width}} | nodes"]
    for node, line in zip(nodes, mask.tolist(), strict=True):
        marks = ["#" if visible else "." for visible in line]
        prefix, tree_marks = " ".join(marks[:prefix_len]), " ".join(marks[prefix_len:])
        lines.append(f"{node:4} {topology.depths[node]:5} | {prefix:<{width}} | {tree_marks}")
    return "\n".join(lines)


def of_nodes(values: Tensor, nodes: range | tuple[int, ...]) -> Tensor:
    """The values of `nodes`: a view for a range, a gather otherwise."""
    if isinstance(nodes, range):
        return values[nodes.start : nodes.stop]
    return values[torch.tensor(nodes, device=values.device)]


def main() -> None:
    """Draw a tree of 9 nodes after 6 cached keys: all rows, then its last level under a window."""
    tree = topology([-1, 0, 0, 0, 1, 1, 2, 4, 6])
    print("parents", list(tree.parents))
    print("\nEvery node sees the prefix, itself and its ancestors:\n")
    print(draw(tree, dense_mask(tree, 6)))
    print("\nThe last level only, with a sliding window of 5 positions (a node's is 6 + depth):\n")
    print(draw(tree, dense_mask(tree, 6, rows=[7, 8], window=5), rows=[7, 8]))


if __name__ == "__main__":
    main()
