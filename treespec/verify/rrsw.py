"""Recursive rejection sampling over drafts drawn without replacement."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.distributions import residual, without
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_distinct_children
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down

__all__ = ["rrsw"]


@rule(
    laws={Law.WITHOUT_REPLACEMENT},
    reference="arXiv:2402.12374",
    distinct=True,
    scope=Scope.ELDERS,
    child_acceptance=of_distinct_children,
)
def rrsw(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """As `rrs`, and after each rejection the rejected token leaves the draft distribution too.

    Sequoia's verification (arXiv:2402.12374, Algorithm 2); also RSD (arXiv:2402.14160). When the draft's
    support is exhausted it becomes uniform over the tokens not yet rejected. Ours differs from Sequoia
    in that the drafter goes on drawing by the same function (`treespec.distributions.without`): padding
    with anything else is biased. Acceptance is 1 - TV(p, q) with one child, and 1 when the children
    cover the target's support.

    Args:
        tree: children drawn without replacement from `draft_probs`.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tried and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law, siblings that repeat, or a child tried that the
            draft could not have drawn after its elder siblings.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    left, draft = target_probs, draft_probs
    for child, token in enumerate(children):
        if child > 0:
            draft = without(draft_probs, torch.tensor(children[:child], device=draft_probs.device))
        if coins.accept(ratio(left, draft, token)):
            return NodeChoice(child=child)
        left = residual(left, draft)
    return NodeChoice(token=coins.draw(left))
