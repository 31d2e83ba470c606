"""Recursive rejection sampling over independent drafts."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_iid_children
from treespec.verify.one_by_one import MIXES, Sibling, accept_in_turn, one_by_one
from treespec.verify.rule import NodeChoice, Scope, rule


@rule(
    laws={Law.IID},
    mixes=MIXES,
    reference="arXiv:2305.09781",
    scope=Scope.ELDERS,
    child_acceptance=of_iid_children,
)
def rrs(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test the children in draw order, each with min(1, p / q); after each rejection p <- norm([p - q]+).

    SpecInfer's multi-step speculative sampling (arXiv:2305.09781, Algorithm 2, VerifyStochastic). If no
    child is accepted, the bonus is drawn from the remaining p.

    In a mixed tree each child is tested against the row that it was drawn from, given the earlier children
    of its group; a deterministic child x counts as a draw from the row with all its mass on x. A node with
    several groups accepts most if the deterministic ones come last.

    Args:
        tree: children drawn i.i.d. from `draft_probs` (siblings may repeat), or a mixed tree.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tested and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law (on top-k children this rule is biased), or a
            tested child whose draft probability is 0.
    """
    return one_by_one(tree, target_probs, coins)


def in_draw_order(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    """The decision of `rrs` at one node; with one child, that of `chain`."""
    assert draft_probs is not None
    return accept_in_turn(target_probs, (Sibling(token, draft_probs) for token in children), coins)
