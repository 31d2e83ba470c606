"""The mask of a token tree as intervals of depth-first ranks: two int32 per node, read by kernels.

Depth-first order numbers the nodes so that the descendants of a node follow it without a gap. Then

    visible(i, j) = pre[j] <= pre[i] < end[j]       (row i may attend to key j: j is i or above i)

A row needs one number and a key needs two; the N x N mask is never stored. A sliding window also needs
the depth: key j is hidden from row i if `depth[i] - depth[j] >= window`.

`Topology` holds these arrays. This module exposes them as a form of the mask, answers which nodes see
which, expands them to a dense mask, and renumbers a tree so that `pre[i] == i`. After renumbering, no
row of a block sees keys beyond the block's last row, so tiles of such keys can be skipped.

Not covered: the prefix. Without a window every row sees all of it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from attention_masks._inputs import checked_window
from attention_masks.topology import Topology, topology


@dataclass(frozen=True, eq=False)
class Intervals:
    """The arrays, in node order. They belong to the topology: do not write into them.

    Attributes:
        pre: depth-first rank of each node, from 0 for the root.
        end: one past the rank of each node's last descendant.
        depth: edges from the root; read only under a window.
    """

    pre: Int32[Tensor, " nodes"]
    end: Int32[Tensor, " nodes"]
    depth: Int32[Tensor, " nodes"]

    def visible(
        self, row: Int[Tensor, "*#shape"], key: Int[Tensor, "*#shape"], window: int | None = None
    ) -> Bool[Tensor, "*shape"]:
        """Whether each row sees each key, for nodes given as indices that broadcast.

        `row`: nodes that query; not checked to be in the tree. `key`: nodes that are attended to; not
        checked either. `window`: keys that are `window` or more positions before a row are hidden; None
        hides none. Returns True where the key is the row itself or an ancestor of it, within the window.
        """
        window = checked_window(window)
        rank = self.pre[row]
        seen = (self.pre[key] <= rank) & (rank < self.end[key])
        if window is not None:
            seen &= self.depth[row] - self.depth[key] < window
        return seen

    def dense(self, window: int | None = None) -> Bool[Tensor, "nodes nodes"]:
        """The mask over the nodes alone: `dense_mask` without a prefix."""
        nodes = torch.arange(self.pre.shape[0], device=self.pre.device)
        return self.visible(nodes[:, None], nodes, window)


def intervals(topology: Topology) -> Intervals:
    """The interval form of a tree: views of the topology's arrays, on its device.

    Example:
        >>> tree = intervals(topology([-1, 0, 0, 1]))
        >>> tree.pre.tolist(), tree.end.tolist()
        ([0, 1, 3, 2], [4, 3, 4, 3])
        >>> tree.visible(torch.tensor(3), torch.tensor([0, 1, 2, 3])).tolist()
        [True, True, False, True]
    """
    return Intervals(topology.pre, topology.end, topology.depth)


def depth_first(tree: Topology) -> tuple[Topology, Int32[Tensor, " nodes"]]:
    """The same tree with its nodes renumbered so that `pre` is the identity.

    Children keep their order, so draw order is preserved. One gather renumbers a tensor of rows, and
    another restores it:

        renumbered, order = depth_first(tree)
        out = attention(q[..., order, :], ...)[..., tree.pre, :]

    Returns the renumbered topology, and `order`: its node r is node `order[r]` of `tree`. Both are on the
    device of `tree`.

    Example:
        >>> renumbered, order = depth_first(topology([-1, 0, 0, 1]))
        >>> order.tolist(), renumbered.parents, renumbered.pre.tolist()
        ([0, 1, 3, 2], (-1, 0, 1, 0), [0, 1, 2, 3])
    """
    on_cpu = tree.to("cpu")
    order, rank = on_cpu.order.tolist(), on_cpu.pre.tolist()
    parents = [-1, *(rank[tree.parents[node]] for node in order[1:])]
    return topology(parents).to(tree.device), tree.order
