"""The two routes by which a tree enters a transformers model. The probe decides which one a model takes.

`OwnAttention` is our registered attention, which gets the tree as a keyword argument. `OwnMask` is an
additive 4D mask for the model's own attention, for models that drop keyword arguments (StableLM) or do not
look up attention functions (Falcon, GPT-J). Both use our cache.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import PreTrainedModel

from attention_masks import TreePass
from treespec.models.attention import NAME, CausalAttention, TreeAttention


@runtime_checkable
class Route(Protocol):
    """How the model learns what each row of a pass may attend to."""

    implementation: str
    """The attention implementation that the model must be set to."""

    def prompt(self, length: int) -> dict[str, Any]:
        """Keyword arguments of a pass over the first `length` tokens of a text."""

    def trees(self, passes: Sequence[TreePass]) -> dict[str, Any]:
        """Keyword arguments of a pass over the nodes of trees of different texts, one after the other."""


class OwnAttention:
    """Our attention, which gets the tree as a keyword argument."""

    implementation = NAME

    def __init__(self, impl: str = "auto") -> None:
        self.impl = impl

    def prompt(self, length: int) -> dict[str, Any]:
        return {"treespec_pass": CausalAttention(length, self.impl)}

    def trees(self, passes: Sequence[TreePass]) -> dict[str, Any]:
        return {"treespec_pass": TreeAttention(passes, self.impl)}


class OwnMask:
    """The model's own attention under our mask.

    The mask is additive. A boolean mask would be correct with sdpa but silently wrong with eager attention,
    which adds it to the scores.
    """

    def __init__(self, implementation: str, dtype: torch.dtype, device: torch.device) -> None:
        self.implementation, self.dtype, self.device = implementation, dtype, device

    def prompt(self, length: int) -> dict[str, Any]:
        """No arguments: the model is causal by itself."""
        return {}

    def trees(self, passes: Sequence[TreePass]) -> dict[str, Any]:
        """A mask `[1, 1, rows, keys]`, in which no node attends to rows of another text."""
        masks = []
        for tree_pass in passes:
            mask = tree_pass.bias(None, self.dtype, self.device)
            if mask is None:
                shape = (tree_pass.row_count, tree_pass.key_count)
                mask = torch.zeros(shape, dtype=self.dtype, device=self.device)
            masks.append(mask)
        rows, keys = (sum(sizes) for sizes in zip(*(mask.shape for mask in masks), strict=True))
        hidden = torch.finfo(self.dtype).min
        whole = torch.full((rows, keys), hidden, dtype=self.dtype, device=self.device)
        row = key = 0
        for mask in masks:
            end, last = row + mask.shape[0], key + mask.shape[1]
            whole[row:end, key:last] = mask
            row, key = end, last
        return {"attention_mask": whole[None, None]}


def plain_implementation(model: PreTrainedModel) -> str:
    """The attention implementation that transformers would run this model with.

    PyTorch's attention has no softcap. Before 5.21, transformers ran models that have one with it, and
    silently ignored the softcap. Here they get their eager attention.
    """
    current = model.config._attn_implementation
    if current and current not in (NAME, "sdpa"):
        return current
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    return "sdpa" if model._supports_sdpa and not capped else "eager"
