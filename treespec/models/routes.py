"""The two routes by which a tree enters a transformers model. The probe decides which one a model takes.

`OwnAttention` is our registered attention, which gets the tree as a keyword argument. `OwnMask` is an
additive 4D mask for the model's own attention, for models that drop keyword arguments (StableLM) or do not
look up attention functions (Falcon, GPT-J). Both use our cache.
"""

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

    def tree(self, tree_pass: TreePass) -> dict[str, Any]:
        """Keyword arguments of a pass over the nodes of a tree."""


class OwnAttention:
    """Our attention, which gets the tree as a keyword argument."""

    implementation = NAME

    def __init__(self, impl: str = "auto") -> None:
        self.impl = impl

    def prompt(self, length: int) -> dict[str, Any]:
        return {"treespec_pass": CausalAttention(length, self.impl)}

    def tree(self, tree_pass: TreePass) -> dict[str, Any]:
        return {"treespec_pass": TreeAttention(tree_pass, self.impl)}


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

    def tree(self, tree_pass: TreePass) -> dict[str, Any]:
        """A mask `[1, 1, rows, keys]`."""
        mask = tree_pass.bias(None, self.dtype, self.device)
        if mask is None:
            shape = (tree_pass.row_count, tree_pass.key_count)
            mask = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return {"attention_mask": mask[None, None]}


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
