"""The tree types: `TreeShape`, a shape without tokens, and `TokenTree`, a tree of drafted tokens.

Node 0 is the root, the last committed token. `size` includes the root; draft tokens = size - 1. `depth`
counts edges. A chain is a tree with one child per node. This module re-exports `treespec.tree.shape`,
`treespec.tree.law` and `treespec.tree.token_tree`. `treespec.tree.unread_tree` has trees whose ids are
still on a device.
"""

from treespec.tree.law import Group, Law
from treespec.tree.shape import TreeShape
from treespec.tree.token_tree import TokenTree

__all__ = ["Group", "Law", "TokenTree", "TreeShape"]
