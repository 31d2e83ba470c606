"""Top-2 gap: marginals branch where their two best tokens are close."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import GrowthSettings, Nodes, Verified
from treespec.search.growth.values import Chosen
from treespec.search.value.marginals import marginal_tree
from treespec.tree import TokenTree, TreeShape


@dataclass(frozen=True)
class Top2Gap(Chosen):
    """Best first over products of marginals, with fewer children where a position is sure.

    At depth d each node has at most

        b_d = max(1, round(branching / (1 + exp(beta (g_d - gap)))))

    children, g_d being the difference of the two largest log-probabilities at d. Within these limits the
    tree is that of `DDTree`, with as many nodes. With a very large `gap`, it is exactly that.

    For drafters that predict a block of positions at once (JetSpec, arXiv:2606.18394, describes such
    trees); a draft model gives the rows along its chain of best tokens, as for `DDTree`.

    Args:
        size: maximum number of nodes, the root included.
        depth: number of predicted positions, and maximum number of edges from the root.
        branching: maximum number of children of a node where the two best tokens are equally probable.
        beta: how sharply the number of children falls with the gap, at least 0.
        gap: the gap in log-probability at which half as many children remain.
    """

    size: int
    depth: int
    branching: int
    beta: float = 1.0
    gap: float = 1.0

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The next node of the chain along which positions are predicted."""
        return () if shape.depth == self.depth else [(shape.size - 1, 1)]

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """The tree of the most probable continuations within the limits of each position."""
        best = marginals.detach().double().topk(min(2, marginals.shape[1])).values.cpu().tolist()
        limits = [self._children(*row) for row in best]
        return marginal_tree(marginals, root, self.size, branching=limits)

    def _children(self, first: float, second: float = 0.0) -> int:
        """b_d, by the two largest probabilities."""
        gap = math.log(first / second) if second > 0 else math.inf
        if self.beta == 0:
            return max(1, round(self.branching / 2))
        exponent = self.beta * (gap - self.gap)
        return max(1, round(self.branching / (1 + math.exp(min(exponent, 700.0)))))


class Top2GapGrowth(GrowthSettings):
    """Best first over a distribution per position, with fewer children where its two best are far apart."""

    example = "{kind: top2gap, size: 16, depth: 6, branching: 4}"
    named = "top-2 gap {size}"

    kind: Literal["top2gap"]
    size: Verified
    depth: Nodes
    """Drafted positions: levels below the root."""
    branching: Nodes
    """Children of a node where the two best tokens are equally probable; at most."""
    beta: Annotated[float, Field(ge=0)] = 1.0
    """How sharply the number of children falls with the gap."""
    gap: float = 1.0
    """The difference of the two largest log-probabilities at which half as many children remain."""


plugins.growth("top2gap", settings=Top2GapGrowth)(Top2Gap)
