"""Dense masks of a token tree after a prefix: boolean, or additive for transformers.

A row is a queried node, a column a key: first the `prefix_len` cached keys, then one key for each
node, in node order. A row sees the whole prefix, itself and its ancestors, but neither siblings nor
other branches. The position of a node is `prefix_len + depth`, so siblings share a position. A
sliding window is over these positions, as the `sliding_window` of transformers: a key is visible if
and only if `position of row - position of key < window`.

Not covered: several trees or different prefixes in one batch, padding, sinks.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_masks._inputs import checked_prefix_len, checked_rows, checked_window
from attention_masks.topology import Topology


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
    visible = dense_mask(topology, prefix_len, rows=rows, window=window)
    hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=topology.device)
    return torch.where(visible, hidden.new_zeros(()), hidden)


def of_nodes(values: Tensor, nodes: range | tuple[int, ...]) -> Tensor:
    """The values of `nodes`: a view for a range, a gather otherwise."""
    if isinstance(nodes, range):
        return values[nodes.start : nodes.stop]
    return values[torch.tensor(nodes, device=values.device)]
