"""Tree shapes: what a tree is worth, and the best tree of a size.

`expected_tokens` is the value of a tree under acceptance rates by rank, by depth and rank, or by node
(`NodeRates`); `optimal_tree` the tree of most value within a size, depth and branching, and
`optimal_frontier` those of all sizes and depths at once.
"""

from search.acceptance import NodeRates
from search.errors import InfeasibleTree, InvalidAcceptance, InvalidLimit, SearchError
from search.expected import expected_tokens
from search.frontier import Frontier, optimal_frontier
from search.optimal import optimal_tree

__all__ = [
    "Frontier",
    "InfeasibleTree",
    "InvalidAcceptance",
    "InvalidLimit",
    "NodeRates",
    "SearchError",
    "expected_tokens",
    "optimal_frontier",
    "optimal_tree",
]
