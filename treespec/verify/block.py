"""Block verification of a chain, and of one path of a tree under any draft distributions."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.checked import draft_row
from treespec.verify.rule import Scope, branches, ratio, require_number, rule


@rule(
    laws={Law.IID, Law.WITHOUT_REPLACEMENT},
    reference="arXiv:2403.10444",
    needs=branches,
    scope=Scope.TREE,
)
def block(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test each prefix of the chain as a block and accept the longest one that passes.

    Block verification (Sun et al., arXiv:2403.10444, Algorithm 2), the optimal rule for one chain: it
    accepts at least as many tokens in expectation as `chain`. It reads the rows of all nodes of the chain,
    but the leaf's row only if the whole chain is accepted.

    Args:
        tree: a chain whose nodes were drawn from `draft_probs`.
        target_probs: `[V]` rows by node.
        coins: one coin for each prefix tested, the longest first, and one draw at the end.

    Raises:
        RefusedTree: if the tree branches or was not sampled, or if a token has draft probability 0.
    """
    path = tree.shape.path(tree.shape.leaves[0])
    odds = []
    for node, child in pairwise(path):
        draft_probs = draft_row(tree, node, target_probs[node])
        odds.append(ratio(target_probs[node], draft_probs, tree.token_ids[child]))
    return block_along(path, odds, target_probs, lambda i: tree.draft_probs_of(path[i]), coins)


def block_along(
    path: Sequence[int],
    odds: Sequence[Float[Tensor, ""]],
    target_probs: Rows,
    draft_probs: Callable[[int], Float[Tensor, "V"]],
    coins: Coins,
) -> Verdict:
    """Block verification of one path from the root to a leaf.

    The prefixes have the shares P_0 = 1 and P_i = min(1, P_{i-1} p(x_i) / q(x_i)). The whole path is
    accepted with probability P_n; then, from the longest down, prefix i < n is accepted with probability
    s_i / (s_i + 1 - P_i), where s_i = sum [P_i p_i - q_i]+. The bonus is drawn from p_n after the whole
    path, otherwise from norm([P_i p_i - q_i]+). 0/0 counts as 0.

    `odds`: p(x_i) / q(x_i) for each node of the path except the root. `target_probs`: `[V]` rows by node.
    `draft_probs`: function that returns q_i, the distribution that the child of the i-th node of the path
    was drawn from; called only if a test needs the whole row.
    """
    last = len(path) - 1
    if not last:
        return Verdict(tuple(path), coins.draw(target_probs[path[0]]))
    shares = [torch.ones_like(odds[0])]
    for node, value in zip(path, odds, strict=False):
        require_number(value, node)
        shares.append((shares[-1] * value).clamp_max(1))
    if coins.accept(shares[last]):
        return Verdict(tuple(path), coins.draw(target_probs[path[last]]))
    for i in range(last - 1, -1, -1):
        if shares[i] == 0:  # this prefix is never accepted
            continue
        row = target_probs[path[i]]
        surplus = (shares[i] * row - draft_probs(i)).clamp_min(0)
        mass = surplus.sum()
        require_number(mass, path[i])
        if i == 0 or (mass > 0 and coins.accept(mass / (mass + (1 - shares[i])))):
            return Verdict(tuple(path[: i + 1]), coins.draw(surplus if mass > 0 else row))
    raise AssertionError("the root is always accepted")
