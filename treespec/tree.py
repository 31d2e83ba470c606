"""The tree types: `TreeShape`, a shape without tokens, and `TokenTree`, a tree of drafted tokens.

Node 0 is the root, the last committed token. `size` includes the root; draft tokens = size - 1. `depth`
counts edges. A chain is a tree with one child per node. This module re-exports `treespec.shape`,
`treespec.law` and `treespec.token_tree`.
"""

from treespec.law import Group, Law
from treespec.shape import TreeShape
from treespec.token_tree import TokenTree

__all__ = ["Group", "Law", "TokenTree", "TreeShape"]
