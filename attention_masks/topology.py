"""The topology of a parent array, as the arrays that masks and attention kernels read.

Depth-first order turns "is an ancestor of" into an interval: the descendants of a node follow it
without a gap. Two integers per node (`pre`, `end`) therefore hold the whole N x N mask:

    visible(i, j) = pre[j] <= pre[i] < end[j]       (row i may attend to key j: j is i or above i)

The nodes themselves stay in the caller's order (breadth first when a tree is drafted level by
level).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from attention_masks._plain import plain_integer, plain_integers, plain_items, shown
from attention_masks.errors import NotATree

CPU = torch.device("cpu")


@dataclass(frozen=True, repr=False)
class Topology:
    """A rooted tree over nodes 0..size-1, made by `topology`. Do not write into its tensors.

    Two topologies are equal if their parents and devices are equal.

    Attributes:
        parents: parent of each node, -1 for the root; plain integers.
        depths: edges from the root to each node; plain integers, for code that must not wait for a
            device.
        device: device of the tensors.
        depth: `depths` as a tensor.
        order: the node at each depth-first rank; children in index order.
        pre: depth-first rank of each node, the inverse of `order`.
        end: one past the rank of each node's last descendant.
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...] = field(compare=False)
    device: torch.device
    depth: Int32[Tensor, " nodes"] = field(compare=False)
    order: Int32[Tensor, " nodes"] = field(compare=False)
    pre: Int32[Tensor, " nodes"] = field(compare=False)
    end: Int32[Tensor, " nodes"] = field(compare=False)
    _placed: "dict[torch.device, Topology]" = field(compare=False)

    def __repr__(self) -> str:
        where = "" if self.device == CPU else f", device={str(self.device)!r}"
        return f"Topology(parents={self.parents}{where})"

    @property
    def size(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parents)

    @cached_property
    def ancestors(self) -> Bool[Tensor, "nodes nodes"]:
        """Whether node j (column) is node i (row) itself or one of its ancestors; computed at first use."""
        with torch.inference_mode(False):
            rank = self.pre[:, None]
            return (self.pre <= rank) & (rank < self.end)

    def paths(self) -> list[tuple[int, ...]]:
        """Node indices from the root to each leaf, leaves in depth-first order."""
        children = [0] * self.size
        for parent in self.parents[1:]:
            children[parent] += 1
        paths, path = [], []
        for node in self.order.tolist():
            del path[self.depths[node] :]
            path.append(node)
            if not children[node]:
                paths.append(tuple(path))
        return paths

    def to(self, device: torch.device | str) -> "Topology":
        """The same tree with its tensors on `device`: one transfer, once per device."""
        device = torch.device(device)
        if device not in self._placed:
            packed = torch.stack([self.depth, self.order, self.pre, self.end])
            self._placed[device] = _placed(self.parents, self.depths, packed, device, self._placed)
        return self._placed[device]


def topology(parents: Sequence[int]) -> Topology:
    """Compute depths, depth-first order and subtree ends of a tree given as a parent array.

    Cheap enough to call for every drafted level: the last 1024 different arrays are cached, so a
    repeated shape costs a dictionary lookup.

    Args:
        parents: `parents[0] == -1` and `0 <= parents[i] < i` for every other node i. Plain
            integers.

    Returns:
        A topology on the CPU, int32; the same object for the same parents while it is cached.

    Raises:
        NotATree: if `parents` is not such an array; names the index, the value and what is allowed.

    Example:
        >>> tree = topology([-1, 0, 0, 1, 2])
        >>> tree.depths
        (0, 1, 1, 2, 2)
        >>> tree.order.tolist(), tree.end.tolist()
        ([0, 1, 3, 2, 4], [5, 3, 5, 3, 5])
        >>> tree.paths()
        [(0, 1, 3), (0, 2, 4)]
    """
    if isinstance(parents, Tensor) and parents.device != CPU:
        raise NotATree(
            f"parents are on {parents.device}, but the tree is computed on the host, and fetching them "
            "would wait for the device: pass plain integers, or parents.tolist()"
        )
    plain = plain_integers(parents)
    if plain is None:
        raise NotATree(f"parents must be plain integers, got {shown(parents)}{_where(parents)}")
    return _topology(plain)


def _where(parents: Any) -> str:
    """What is wrong with parents that are not integers: their form, or the first that is not an integer."""
    if hasattr(parents, "parents"):  # a TreeShape, or a tree of a similar kind
        return ": pass its `parents`"
    items = plain_items(parents)
    if items and all(plain_integers(path) for path in items):  # empty paths are no nodes
        return (
            ", which may be paths of ranks, as of Medusa and EAGLE: pass "
            "`treespec.TreeShape.from_paths(paths).parents`"
        )
    for i, parent in enumerate(items or ()):
        if plain_integer(parent) is None:
            return f": parents[{i}] = {shown(parent)}"
    return ""


@lru_cache(maxsize=1024)
def _topology(parents: tuple[int, ...]) -> Topology:
    """Validate the parents and derive the arrays, in three passes over the nodes."""
    if not parents:
        raise NotATree("parents is empty, but a tree has at least its root: parents = [-1]")
    if parents[0] != -1:
        raise NotATree(f"parents[0] = {parents[0]}, but node 0 is the root: it must be -1")
    size = len(parents)
    depths = [0] * size
    for node in range(1, size):
        parent = parents[node]
        if not 0 <= parent < node:
            raise NotATree(
                f"parents[{node}] = {parent}, but a parent comes before its child: "
                f"it must be in 0..{node - 1}"
            )
        depths[node] = depths[parent] + 1
    subtree = [1] * size
    for node in range(size - 1, 0, -1):
        subtree[parents[node]] += subtree[node]
    pre, end, order = [0] * size, [size] * size, [0] * size
    free = [1] * size  # the next free rank in each node's interval
    for node in range(1, size):
        parent = parents[node]
        rank = free[parent]
        free[parent] = rank + subtree[node]
        free[node] = rank + 1
        pre[node], end[node], order[rank] = rank, rank + subtree[node], node
    with torch.inference_mode(False):
        packed = torch.tensor([depths, order, pre, end], dtype=torch.int32, device=CPU)
    return _placed(parents, tuple(depths), packed, CPU, {})


def _placed(
    parents: tuple[int, ...],
    depths: tuple[int, ...],
    packed: Tensor,
    device: torch.device,
    placed: dict[torch.device, Topology],
) -> Topology:
    """A topology whose four arrays are rows of `packed` on `device`.

    The tensors are never inference tensors: a topology outlives the mode in which it was made, and
    autograd refuses to save inference tensors.
    """
    with torch.inference_mode(False):
        packed = packed.to(device)
        depth, order, pre, end = packed.unbind()
    tree = Topology(parents, depths, packed.device, depth, order, pre, end, placed)
    placed[tree.device] = tree
    return tree
