"""Naive sampling: draw from the target, and follow the draws as far as they were drafted."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_target_mass
from treespec.verify.rule import NodeChoice, Scope, rule, top_down


@rule(
    laws=Law,
    mixes=Law,
    reference="arXiv:2305.09781",
    scope=Scope.ELDERS,
    child_acceptance=of_target_mass,
    by_member=True,
)
def naive(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """At each node draw y from the target; if y is a child, go there, else y is the bonus.

    The naive sampling that SpecInfer (arXiv:2305.09781, Section 4.3) compares with; OPT-Tree, SpecExec
    and DDTree decode this way. Acceptance at a node is the target's mass on its children. Lossless for any
    children that were chosen independently of these coins. There is one draw per node, and it is also the
    output: drawing again after a mismatch is biased. Among equal siblings the first is followed.

    Args:
        tree: any tree.
        target_probs: `[V]` rows by node.
        coins: one draw for each visited node.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    return NodeChoice.of(coins.draw(target_probs), children)
