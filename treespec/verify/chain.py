"""Single-draft rejection sampling along a chain."""

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rrs import in_draw_order, rrs
from treespec.verify.rrsw import rrsw
from treespec.verify.rule import Scope, branches, rule, top_down


@rule(
    laws={Law.IID, Law.WITHOUT_REPLACEMENT},
    reference="arXiv:2211.17192",
    needs=branches,
    scope=Scope.ELDERS,
    on_trees={Law.IID: rrs, Law.WITHOUT_REPLACEMENT: rrsw},
)
def chain(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Accept the drafted x with min(1, p(x) / q(x)); on rejection draw from norm([p - q]+).

    Speculative decoding (Leviathan et al., arXiv:2211.17192, Algorithm 1) and speculative sampling (Chen
    et al., arXiv:2302.01318, Algorithm 2). Acceptance is the sum of min(p, q). With one child the two
    sampled laws coincide and `rrs` reduces to this rule, so the code of `rrs` decides here too.

    Args:
        tree: a chain whose nodes were drawn from `draft_probs`.
        target_probs: `[V]` rows by node.
        coins: one coin for each node tested and one draw at the end.

    Raises:
        RefusedTree: if the tree branches or was not sampled, or a tested token has draft probability 0.
    """
    return top_down(tree, target_probs, coins, in_draw_order)
