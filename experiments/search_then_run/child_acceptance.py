"""The exact probability that each child of one node is the accepted one."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.distributions import residual, without
from treespec.verify.rule import ratio

__all__ = ["IN_ORDER", "child_acceptance"]

IN_ORDER = ("greedy", "naive", "onehot", "rrs", "rrsw")
"""Rules that try the children in order, each without regard to how many come after it."""


def child_acceptance(
    rule: str,
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
) -> list[float]:
    """For each child, in draw order: the probability that it is accepted, over the coins of acceptance.

    What `treespec.testing.tree_acceptance` finds by enumeration for any rule, here by formula: a child of
    `greedy`, `naive` and `onehot` has the target's probability (an equal elder sibling takes all of it); of
    `rrs` and `rrsw` the product of what its elder siblings left and its own ratio to the residual.

    Args:
        rule: one of `IN_ORDER`.
        target_probs: the target's row.
        draft_probs: the row that the children were drawn from; not used by the first three.
        children: their tokens.
    """
    if rule not in ("rrs", "rrsw"):
        return [
            0.0 if token in children[:i] else float(target_probs[token])
            for i, token in enumerate(children)
        ]
    assert draft_probs is not None
    left, draft, reached, found = target_probs, draft_probs, 1.0, []
    for i, token in enumerate(children):
        if i and rule == "rrsw":
            draft = without(draft_probs, torch.tensor(children[:i], device=draft_probs.device))
        accept = min(1.0, float(ratio(left, draft, token)))
        found.append(reached * accept)
        reached *= 1.0 - accept
        left = residual(left, draft)
    return found
