"""Recursive rejection sampling over independent drafts."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.distributions import residual
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_iid_children
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down

__all__ = ["in_draw_order", "rrs"]


@rule(
    laws={Law.IID},
    reference="arXiv:2305.09781",
    scope=Scope.ELDERS,
    child_acceptance=of_iid_children,
)
def rrs(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Try the children in draw order, each with min(1, p / q); after each rejection p <- norm([p - q]+).

    SpecInfer's multi-step speculative sampling (arXiv:2305.09781, Algorithm 2, VerifyStochastic). If no
    child is accepted the bonus is drawn from what is left of p.

    Args:
        tree: children drawn i.i.d. from `draft_probs`; siblings may repeat.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tried and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law; on top-k children this rule is biased. Also for a
            child tried whose draft probability is 0.
    """
    return top_down(tree, target_probs, coins, in_draw_order)


def in_draw_order(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    """What `rrs` does at one node; with one child, the acceptance of a chain."""
    assert draft_probs is not None
    left = target_probs
    for child, token in enumerate(children):
        if coins.accept(ratio(left, draft_probs, token)):
            return NodeChoice(child=child)
        left = residual(left, draft_probs)
    return NodeChoice(token=coins.draw(left))
