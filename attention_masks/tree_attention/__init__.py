"""Attention of token-tree nodes over a cache: one call, several implementations, one reference."""

from attention_masks.tree_attention.api import (
    IMPLEMENTATIONS,
    Implementation,
    attend,
    choose,
    tree_attention,
)
from attention_masks.tree_attention.tree_pass import TreePass

__all__ = ["IMPLEMENTATIONS", "Implementation", "TreePass", "attend", "choose", "tree_attention"]
