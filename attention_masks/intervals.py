"""The mask of a token tree as intervals of depth-first ranks: what a kernel reads, two int32 a node.

Depth-first order numbers the nodes so that the descendants of a node follow it without a gap. Then

    visible(i, j) = pre[j] <= pre[i] < end[j]       (row i may attend to key j: j is i or above i)

A row needs one number, a key two; no bit of the N x N mask is stored. A sliding window needs the depth
as well: key j is hidden from row i if `depth[i] - depth[j] >= window`.

`Topology` holds these arrays. This file names them apart from the rest of it, turns them into a dense
mask and back into a plain question about two nodes, and renumbers a tree so that `pre[i] == i`: then
a tile of keys after the block's last row is seen by none of its rows and can be skipped.

Not covered: the prefix, which the intervals do not speak of. Without a window every row sees it all.

`python -m attention_masks.intervals` draws one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from attention_masks._inputs import checked_tensor, checked_topology, checked_window
from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology, topology

__all__ = ["Intervals", "depth_first", "draw", "intervals"]


@dataclass(frozen=True, eq=False)
class Intervals:
    """The arrays, in node order; do not write into them, they belong to the topology.

    Attributes:
        pre: depth-first rank of every node, from 0 for the root.
        end: one past the rank of every node's last descendant.
        depth: edges from the root; read only under a window.
    """

    pre: Int32[Tensor, " nodes"]
    end: Int32[Tensor, " nodes"]
    depth: Int32[Tensor, " nodes"]

    def visible(
        self, row: Int[Tensor, "*#shape"], key: Int[Tensor, "*#shape"], window: int | None = None
    ) -> Bool[Tensor, "*shape"]:
        """Whether each row sees each key, for nodes given as indices that broadcast.

        Args:
            row: nodes that look; not checked to be in the tree.
            key: nodes that are looked at; likewise.
            window: keys at `window` positions or more before a row are hidden. None hides none.

        Returns:
            True where the key is the row itself or an ancestor of it, within the window.

        Raises:
            InvalidInput: if `window` is out of range, or `row` or `key` is no tensor of integers.
        """
        window = checked_window(window)
        for name, nodes in (("row", row), ("key", key)):
            checked_tensor(name, nodes)
            if nodes.is_floating_point() or nodes.is_complex() or nodes.dtype == torch.bool:
                raise InvalidInput(f"{name} is {nodes.dtype}, but nodes are integers")
        rank = self.pre[row]
        seen = (self.pre[key] <= rank) & (rank < self.end[key])
        if window is not None:
            seen &= self.depth[row] - self.depth[key] < window
        return seen

    def dense(self, window: int | None = None) -> Bool[Tensor, "nodes nodes"]:
        """The mask over the nodes alone: `dense_mask` with no prefix.

        Raises:
            InvalidInput: if `window` is out of range.
        """
        nodes = torch.arange(self.pre.shape[0], device=self.pre.device)
        return self.visible(nodes[:, None], nodes, window)


def intervals(topology: Topology) -> Intervals:
    """The interval form of a tree: views, on the topology's device.

    Example:
        >>> tree = intervals(topology([-1, 0, 0, 1]))
        >>> tree.pre.tolist(), tree.end.tolist()
        ([0, 1, 3, 2], [4, 3, 4, 3])
        >>> tree.visible(torch.tensor(3), torch.tensor([0, 1, 2, 3])).tolist()
        [True, True, False, True]
    """
    checked_topology(topology)
    return Intervals(topology.pre, topology.end, topology.depth)


def depth_first(tree: Topology) -> tuple[Topology, Int32[Tensor, " nodes"]]:
    """The same tree with its nodes renumbered so that `pre` is the identity.

    Children keep their order, so what was in draw order still is. A tensor of rows follows with one
    gather, and comes back with another:

        renumbered, order = depth_first(tree)
        out = attention(q[..., order, :], ...)[..., tree.pre, :]

    Args:
        tree: any topology.

    Returns:
        The renumbered topology, and `order`: node r of it is node `order[r]` of `tree`. Both on the
        device of `tree`.

    Example:
        >>> renumbered, order = depth_first(topology([-1, 0, 0, 1]))
        >>> order.tolist(), renumbered.parents, renumbered.pre.tolist()
        ([0, 1, 3, 2], (-1, 0, 1, 0), [0, 1, 2, 3])
    """
    on_cpu = checked_topology(tree, "tree").to("cpu")
    order, rank = on_cpu.order.tolist(), on_cpu.pre.tolist()
    parents = [-1, *(rank[tree.parents[node]] for node in order[1:])]
    return topology(parents).to(tree.device), tree.order


def draw(topology: Topology) -> str:
    """A picture of the intervals as text: `#` the rank of a node, `=` those of its descendants.

    Read downwards, a column shows who is seen by the node of that rank: every line that is not `.`.

    Args:
        topology: any.

    Example:
        >>> print(draw(topology([-1, 0, 0, 1])))
        node  pre  end | ranks
           0    0    4 | # = = =
           1    1    3 | . # = .
           2    3    4 | . . . #
           3    2    3 | . . # .
    """
    lines = ["node  pre  end | ranks"]
    for node, (pre, end) in enumerate(
        zip(topology.pre.tolist(), topology.end.tolist(), strict=True)
    ):
        marks = [
            "#" if rank == pre else "=" if pre < rank < end else "."
            for rank in range(topology.size)
        ]
        lines.append(f"{node:4} {pre:4} {end:4} | {' '.join(marks)}")
    return "\n".join(lines)


def main() -> None:
    """Draw a tree of 9 nodes in breadth-first order, then renumbered depth first."""
    tree = topology([-1, 0, 0, 0, 1, 1, 2, 4, 6])
    print("parents", list(tree.parents), "\n")
    print(draw(tree))
    renumbered, order = depth_first(tree)
    print(
        "\nIn depth-first order", order.tolist(), "the parents are", list(renumbered.parents), "\n"
    )
    print(draw(renumbered))


if __name__ == "__main__":
    main()
