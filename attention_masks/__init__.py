"""Masks and attention for token trees, in plain PyTorch.

    >>> import torch
    >>> from attention_masks import topology, tree_attention
    >>> tree = topology([-1, 0, 0, 1])  # a root, two children, a grandchild
    >>> q = torch.randn(1, 8, tree.size, 64)  # one query for each node
    >>> k, v = torch.randn(2, 1, 2, 100, 64)  # 100 slots, 20 used before the tree
    >>> tree_attention(q, k, v, tree, prefix_len=20).shape
    torch.Size([1, 8, 4, 64])

The parts: `topology` (turns a parent array into the arrays that masks need), `dense_mask` and
`additive_mask`, `tree_attention`, and for models with many layers `TreePass` with `attend`, which
build each mask once per pass. The package imports torch and nothing heavier, and is independent of
models and tokens.

The functions `topology` and `tree_attention` share the names of their modules. To reach into these
modules, write `from attention_masks.tree_attention import ...`.
"""

from typing import TYPE_CHECKING, Any

from attention_masks.errors import (
    AttentionMaskError,
    InvalidInput,
    NotATree,
    Unavailable,
    Unsupported,
)
from attention_masks.topology import Topology, topology
from attention_masks.tree_attention import RaggedPass, TreePass, attend, tree_attention

if TYPE_CHECKING:
    from attention_masks.dense import additive_mask, dense_mask
    from attention_masks.flex import block_mask, mask_mod
    from attention_masks.packed import flashinfer_mask, packed_rows, tensorrt_llm_mask, unpacked
    from attention_masks.ragged import forest, ragged_additive_mask, ragged_mask

__all__ = [
    "AttentionMaskError",
    "InvalidInput",
    "NotATree",
    "RaggedPass",
    "Topology",
    "TreePass",
    "Unavailable",
    "Unsupported",
    "additive_mask",
    "attend",
    "block_mask",
    "dense_mask",
    "flashinfer_mask",
    "forest",
    "mask_mod",
    "packed_rows",
    "ragged_additive_mask",
    "ragged_mask",
    "tensorrt_llm_mask",
    "topology",
    "tree_attention",
    "unpacked",
]

# Mask forms are imported at first use: FlexAttention takes long to import.
_FORMS = {
    "additive_mask": "dense",
    "block_mask": "flex",
    "dense_mask": "dense",
    "flashinfer_mask": "packed",
    "forest": "ragged",
    "mask_mod": "flex",
    "packed_rows": "packed",
    "ragged_additive_mask": "ragged",
    "ragged_mask": "ragged",
    "tensorrt_llm_mask": "packed",
    "unpacked": "packed",
}


def __getattr__(name: str) -> Any:
    """Import the module of a mask form at the first use of its name."""
    if name not in _FORMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_FORMS[name]}"), name)


def __dir__() -> list[str]:
    """The public names, including those not imported yet."""
    return sorted({*globals(), *__all__})
