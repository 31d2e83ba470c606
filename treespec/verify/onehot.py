"""One-hot (target-only) acceptance for distinct, deterministic children."""

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.child_acceptance import of_target_mass
from treespec.verify.one_by_one import one_by_one
from treespec.verify.rule import Scope, rule


@rule(
    laws={Law.DETERMINISTIC},
    reference="arXiv:2406.16858",
    distinct=True,
    scope=Scope.ELDERS,
    child_acceptance=of_target_mass,
    by_member=True,
)
def onehot(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test the children in turn, x with the target's p(x); after a rejection set p(x) to 0 and renormalise.

    The acceptance of EAGLE-2/3 (arXiv:2406.16858) and SGLang: rejection sampling with a one-hot draft
    distribution for each child. Its output has the same law as naive sampling on the same children.
    Biased if children repeat.

    Args:
        tree: a tree with deterministic, distinct children.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tested and one draw at the end.

    Raises:
        RefusedTree: if children were sampled or repeat.
    """
    return one_by_one(tree, target_probs, coins)
