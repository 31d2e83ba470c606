"""The static growth, and the laws that a growth allows. Dynamic growths live in `treespec.search`."""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.protocols import MarginalGrowth
from treespec.tree import Law, TreeShape


def laws_along(growth: object) -> frozenset[Law]:
    """The laws by which the children of a growth's trees may be chosen.

    `growth`: a growth, which may state its `laws`; a shape; or None. Returns the laws that it states, or
    all laws if it states none. For a `MarginalGrowth`, which takes the best tokens of each position, only
    DETERMINISTIC remains.
    """
    laws = frozenset(getattr(growth, "laws", Law))
    return laws & {Law.DETERMINISTIC} if isinstance(growth, MarginalGrowth) else laws


class StaticGrowth:
    """Grows a fixed shape, level by level.

    Args:
        shape: the shape to grow. Nodes are drafted breadth first, so the drafted tree has the numbering
            of `shape.breadth_first()`.
    """

    def __init__(self, shape: TreeShape) -> None:
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
        """The nodes of the last level that have children in the shape, with their numbers of children."""
        return self._next.get(shape.size, ())
