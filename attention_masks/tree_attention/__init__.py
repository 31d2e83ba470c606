"""Attention of the nodes of a token tree over a cache: one call, several implementations, one reference."""

from attention_masks.tree_attention.api import (
    IMPLEMENTATIONS,
    Implementation,
    attend,
    choose,
    tree_attention,
)
from attention_masks.tree_attention.buffered_pass import BufferedPass
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.pass_arrays import PassArrays
from attention_masks.tree_attention.ragged_pass import RaggedPass
from attention_masks.tree_attention.scattered_pass import ScatteredPass, ScatteredSize
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass

__all__ = [
    "IMPLEMENTATIONS",
    "AnyPass",
    "BufferedPass",
    "Implementation",
    "Options",
    "PassArrays",
    "RaggedPass",
    "ScatteredPass",
    "ScatteredSize",
    "TreePass",
    "attend",
    "choose",
    "tree_attention",
]
