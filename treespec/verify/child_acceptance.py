"""The exact probability that each child of a node is accepted, for rules that test them in draw order.

Closed forms of what `treespec.testing.tree_acceptance` finds by enumeration for any rule.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.sampling.distributions import residual, without
from treespec.verify.rule import ratio


def of_target_mass(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """A child's target probability; 0 if an earlier sibling has the same token."""
    return [
        0.0 if token in children[:i] else float(target_probs[token])
        for i, token in enumerate(children)
    ]


def of_iid_children(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """For children drawn i.i.d.: P(all earlier siblings rejected) times the child's own acceptance."""
    assert draft_probs is not None
    return _acceptance_in_turn(target_probs, children, lambda elders: draft_probs)


def of_distinct_children(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """The same for children drawn without replacement, each from what its earlier siblings left."""
    assert draft_probs is not None

    def draft_after(elders: Sequence[int]) -> Float[Tensor, "V"]:
        gone = torch.tensor(elders, dtype=torch.long, device=draft_probs.device)
        return without(draft_probs, gone) if elders else draft_probs

    return _acceptance_in_turn(target_probs, children, draft_after)


def _acceptance_in_turn(
    target_probs: Float[Tensor, "V"],
    children: Sequence[int],
    draft_after: Callable[[Sequence[int]], Float[Tensor, "V"]],
) -> list[float]:
    left, all_rejected, acceptance = target_probs, 1.0, []
    for i, token in enumerate(children):
        draft = draft_after(children[:i])
        accept = min(1.0, float(ratio(left, draft, token)))
        acceptance.append(all_rejected * accept)
        all_rejected *= 1.0 - accept
        left = residual(left, draft)
    return acceptance
