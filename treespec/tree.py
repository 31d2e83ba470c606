"""The tree types: `TreeShape`, a shape without tokens, and `TokenTree`, a tree of drafted tokens.

Node 0 is the root, the last committed token. `size` counts it; draft tokens = size - 1. `depth` counts
edges. A chain is a tree with one child per node. This module gathers `treespec.shape` and
`treespec.token_tree`.
"""

from treespec.shape import TreeShape
from treespec.token_tree import Law, TokenTree

__all__ = ["Law", "TokenTree", "TreeShape"]
