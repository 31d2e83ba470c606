"""The exact probability that each child of one node is accepted, by rules that try them in draw order.

What `treespec.testing.tree_acceptance` finds by enumeration for any rule, here by formulas.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.distributions import residual, without
from treespec.verify.rule import ratio

__all__ = ["of_distinct_children", "of_iid_children", "of_target_mass"]


def of_target_mass(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """A child has the target's probability; an equal elder sibling takes all of it."""
    return [
        0.0 if token in children[:i] else float(target_probs[token])
        for i, token in enumerate(children)
    ]


def of_iid_children(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """What the elder siblings left, times the child's own ratio to the residual; all drawn alike."""
    assert draft_probs is not None
    return _tried(target_probs, children, lambda elders: draft_probs)


def of_distinct_children(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """The same for children drawn without replacement: each from what its elder siblings left."""
    assert draft_probs is not None

    def draft_after(elders: Sequence[int]) -> Float[Tensor, "V"]:
        gone = torch.tensor(elders, dtype=torch.long, device=draft_probs.device)
        return without(draft_probs, gone) if elders else draft_probs

    return _tried(target_probs, children, draft_after)


def _tried(
    target_probs: Float[Tensor, "V"],
    children: Sequence[int],
    draft_after: Callable[[Sequence[int]], Float[Tensor, "V"]],
) -> list[float]:
    left, reached, chances = target_probs, 1.0, []
    for i, token in enumerate(children):
        draft = draft_after(children[:i])
        accept = min(1.0, float(ratio(left, draft, token)))
        chances.append(reached * accept)
        reached *= 1.0 - accept
        left = residual(left, draft)
    return chances
