"""How a tree grows: the static policy, and the laws of all. Dynamic ones live in `search`."""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.door import instance
from treespec.protocols import MarginalGrowth
from treespec.tree import Law, TreeShape

__all__ = ["StaticGrowth", "laws_along"]


def laws_along(growth: object) -> frozenset[Law]:
    """How the children of a tree may be chosen, by where it grows.

    Args:
        growth: a growth, which may state its `laws`; or anything else that a tree is made by.

    Returns:
        The laws that it states, all if it states none. One that makes its tree of marginals takes the best
        tokens of a position, whatever it states.
    """
    laws = frozenset(getattr(growth, "laws", Law))
    return laws & {Law.DETERMINISTIC} if isinstance(growth, MarginalGrowth) else laws


class StaticGrowth:
    """Grows one and the same shape, level by level.

    Args:
        shape: the shape to grow. Nodes are drafted breadth first, so the drafted tree has the numbering
            of `shape.breadth_first()`.

    Raises:
        InvalidArgument: if it is no shape.
    """

    def __init__(self, shape: TreeShape) -> None:
        instance("shape", shape, TreeShape, "a TreeShape")
        self.shape = shape.breadth_first()
        self.max_depth = shape.depth
        counts = [len(children) for children in self.shape.children]
        self._next: dict[int, list[tuple[int, int]]] = {}
        for depth in range(self.max_depth):
            level = [node for node in range(shape.size) if self.shape.depths[node] == depth]
            self._next[level[-1] + 1] = [(node, counts[node]) for node in level if counts[node]]

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The nodes of the last level that have children in the shape, with how many."""
        return self._next.get(shape.size, ())
