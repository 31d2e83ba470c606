"""DDTree: the most probable continuations under one distribution for each position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import GrowthSettings, Nodes, Verified
from treespec.search.growth.values import Chosen
from treespec.search.value.marginals import marginal_tree
from treespec.tree import TokenTree, TreeShape


@dataclass(frozen=True)
class DDTree(Chosen):
    """DDTree's draft tree: best first over products of marginals (`treespec.search.marginal_tree`).

    It was designed for drafters that predict a block of positions at once, with a distribution for each. A
    draft model predicts one position at a time: here it runs a chain of its most probable tokens, and its
    distribution at each node of the chain is used for that position, whatever the tokens before. So `depth`
    rows of the draft suffice for a tree of any size, whereas `SpecExec` needs a row for each node with
    children; off the chain, these rows belong to another context.

    Children are the most probable tokens of their position: DETERMINISTIC.

    Args:
        size: maximum number of nodes, the root included.
        depth: number of predicted positions: rows of the draft, and maximum number of edges from the root.
        branching: maximum number of children of a node; None for no limit.
    """

    size: int
    depth: int
    branching: int | None = None

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The next node of the chain along which positions are predicted."""
        return () if shape.depth == self.depth else [(shape.size - 1, 1)]

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """The tree of the most probable continuations."""
        return marginal_tree(marginals, root, self.size, branching=self.branching)


class DDTreeGrowth(GrowthSettings):
    """DDTree: the most probable continuations under one distribution per position.

    A draft model provides the distributions along the chain of its best tokens: a row stands for its
    position, whatever tokens precede it, so `depth` rows of the draft make a tree of any size. Sources that
    bring their own continuations have no such distributions.
    """

    example = "{kind: ddtree, size: 16, depth: 6}"
    named = "DDTree {size}"

    kind: Literal["ddtree"]
    size: Verified
    depth: Nodes
    """Drafted positions: levels below the root."""
    branching: Nodes | None = None
    """Maximum children per node; null for as many as are probable enough."""


plugins.growth("ddtree", settings=DDTreeGrowth)(DDTree)
