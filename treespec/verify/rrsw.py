"""Recursive rejection sampling over drafts drawn without replacement."""

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_distinct_children
from treespec.verify.one_by_one import MIXES, one_by_one
from treespec.verify.rule import Scope, rule


@rule(
    laws={Law.WITHOUT_REPLACEMENT},
    mixes=MIXES,
    reference="arXiv:2402.12374",
    distinct=True,
    scope=Scope.ELDERS,
    child_acceptance=of_distinct_children,
)
def rrsw(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test as `rrs` does; each rejected token is also removed from the draft distribution.

    Sequoia's verification (arXiv:2402.12374, Algorithm 2); also RSD (arXiv:2402.14160). Once the draft's
    support is exhausted, the draft becomes uniform over the tokens not yet rejected. Ours differs from
    Sequoia in that the drafter continues to draw by the same function (`distributions.without`):
    padding with anything else is biased. Acceptance is 1 - TV(p, q) with one child, and 1 if the children
    cover the target's support. Mixed trees are decided as by `rrs`, child by child.

    Args:
        tree: children drawn without replacement from `draft_probs`, or a mixed tree.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tested and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law, repeated siblings, or a tested child that the
            draft could not have drawn after its earlier siblings.
    """
    return one_by_one(tree, target_probs, coins)
