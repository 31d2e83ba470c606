"""Greedy acceptance: follow the target's most probable token."""

from treespec.errors import RefusedTree
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.checked import TargetRows
from treespec.verify.child_acceptance import of_target_mass
from treespec.verify.rule import Scope, rule


@rule(
    laws=Law,
    mixes=Law,
    reference="arXiv:2305.09781",
    one_hot=True,
    scope=Scope.ELDERS,
    child_acceptance=of_target_mass,
    by_member=True,
)
def greedy(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Follow the children that equal the target's token at temperature 0, as far as they were drafted.

    SpecInfer's greedy verification (arXiv:2305.09781, Algorithm 2, VerifyGreedy). No coin is used. Every
    other rule coincides with it on one-hot rows. Among equal siblings the first is followed.

    Args:
        tree: any tree.
        target_probs: one-hot rows, as `Sampling(temperature=0)` gives (ties: the lowest id).
        coins: not used.

    Raises:
        RefusedTree: if a visited row is not one-hot; at other temperatures use another rule.
    """
    rows, path = TargetRows.of(tree, target_probs), [0]
    while True:
        token = rows.greedy_token(path[-1])
        if token is None:
            raise RefusedTree(
                f"rule 'greedy' needs one-hot target rows (temperature 0), but the best token of node "
                f"{path[-1]} has probability {float(rows[path[-1]].max()):.6g}"
            )
        matches = [c for c in tree.shape.children[path[-1]] if tree.token_ids[c] == token]
        if not matches:
            return Verdict(tuple(path), token)
        path.append(matches[0])
