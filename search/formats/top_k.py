"""Top-k settings: the numbers by which engines describe EAGLE-2 trees (arXiv:2406.16858).

Every level keeps the k best nodes and gives each k children; of all these candidates, the best are
verified. So the three numbers bound a shape without determining it. This module finds the smallest k with
which an engine can draw a given shape, and the shape of settings that permit only one.
"""

from dataclasses import dataclass

from treespec.search.formats.reading import MalformedTree, NoShape, NotExportable, node_count
from treespec.tree.shape import TreeShape

SHAPE = (
    "the shape: the engine grows a new tree at every step; depth, draft tokens and the smallest top-k "
    "with which this engine can draw it are kept"
)


@dataclass(frozen=True)
class TopK:
    """Top-k settings of a dynamic tree.

    Attributes:
        k: children drafted at each of the k nodes that a level keeps.
        depth: levels below the root.
        drafts: verified draft tokens, without the root.
    """

    k: int
    depth: int
    drafts: int

    @classmethod
    def of(cls, shape: TreeShape) -> "TopK":
        """Depth and draft tokens of a shape, and the smallest k with which it can be drawn.

        Raises:
            NotExportable: if the shape is the root alone.

        Example:
            >>> TopK.of(TreeShape.expansion([2, 1, 1]))
            TopK(k=2, depth=3, drafts=6)
        """
        if shape.size == 1:
            raise NotExportable(
                "the root alone is plain decoding: leave out the engine's speculative settings"
            )
        internal_nodes = [0] * (shape.depth + 1)
        for node in shape.internal:
            internal_nodes[shape.depths[node]] += 1
        widest = max(len(children) for children in shape.children)
        return cls(max(widest, *internal_nodes), shape.depth, shape.size - 1)

    @property
    def lost(self) -> tuple[str, ...]:
        """What these settings do not keep: the shape, unless it is a chain or a single level."""
        return () if self.k == 1 or self.depth == 1 else (SHAPE,)

    @property
    def candidates(self) -> int:
        """Number of drafted nodes: k in the first level, k times k in every other."""
        return self.k + (self.depth - 1) * self.k**2

    def shape(self) -> TreeShape:
        """The shape, if these settings permit only one: a chain, or a single level.

        Raises:
            MalformedTree: if more tokens are to be verified than are drafted.
            NoShape: if the shape depends on the drafted tokens.
        """
        node_count(self.drafts + 1)
        if self.drafts > self.candidates:
            raise MalformedTree(
                f"{self.drafts} draft tokens are wanted, but top-k {self.k} and depth {self.depth} "
                f"draft only {self.candidates}"
            )
        if self.k == 1 and self.drafts == self.depth:
            return TreeShape.chain(self.depth)
        if self.depth == 1:
            return TreeShape.kary(self.drafts, 1)
        raise NoShape(
            f"top-k {self.k}, depth {self.depth} and {self.drafts} draft tokens do not determine a shape: "
            "the engine grows a new tree at every step; use an EAGLE-2 growth with these numbers"
        )
