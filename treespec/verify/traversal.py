"""Traversal verification: a tree is judged from its leaves up."""

from collections.abc import Iterator

import torch
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.one_by_one import MIXES, Sibling, siblings
from treespec.verify.rule import Scope, ratio, require_number, rule

__all__ = ["traversal"]


@rule(
    laws={Law.IID, Law.WITHOUT_REPLACEMENT},
    mixes=MIXES,
    reference="arXiv:2505.12398",
    distinct=True,
    scope=Scope.TREE,
)
def traversal(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test the leaves in depth-first order; a rejected leaf is deleted, and its parent's row pays for it.

    Traversal verification (arXiv:2505.12398). The share of the root is 1, that of child x of
    node v is a(x) = min(1, a(v) p_v(x) / q_v(x)). The first leaf c is accepted with a(c): its path is
    kept, and the bonus drawn from p_c. Otherwise, with r = [a(v) p_v - q_v]+ and s = sum r at its parent
    v: p_v <- r / s, a(v) <- s / (s + 1 - a(v)) (the root stays 1), and q_v loses the token if the
    children were drawn without replacement. A node whose children are all deleted is a leaf. On a chain
    this is block verification. Ours starts at the shares, so a subtree of share 0 is deleted at once,
    and takes for q_v what the next child was drawn from, so that it decides on mixed trees too.

    Unlike the rules that go top-down it reads the rows of every node on its way, most of the tree.

    Args:
        tree: children drawn i.i.d. or without replacement from `draft_probs`, by nodes; or a mixed tree.
        target_probs: `[V]` rows by node.
        coins: one coin for each leaf tested and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law, siblings drawn without replacement that repeat, or
            a child tried that the draft could not have drawn.
    """
    shape = tree.shape
    rows: dict[int, Tensor] = {}
    shares: dict[int, Tensor] = {0: torch.ones_like(target_probs[0][0])}
    waiting: dict[int, Iterator[Sibling]] = {}
    draft: dict[
        int, Tensor
    ] = {}  # of each node, what its first child that is not deleted was drawn from
    deleted = [0] * shape.size
    node = 0
    while True:
        if node not in rows:
            rows[node] = target_probs[node]
            waiting[node] = siblings(tree, node, rows[node])
        children = shape.children[node][deleted[node] :]
        if children:
            child = children[0]
            draft[node] = _row(next(waiting[node]), rows[node])
            odds = ratio(rows[node], draft[node], tree.token_ids[child])
            require_number(odds, node)
            shares[child] = (shares[node] * odds).clamp_max(1)
            if shares[child] > 0:
                node = child
                continue
        elif node == 0 or coins.accept(shares[node]):
            return Verdict(shape.path(node), coins.draw(rows[node]))
        else:
            node = shape.parents[node]
        rest = (shares[node] * rows[node] - draft[node]).clamp_min(0)
        mass = rest.sum()
        require_number(mass, node)
        if mass > 0:
            rows[node] = rest / mass
        if node:
            shares[node] = mass / (mass + (1 - shares[node])) if mass > 0 else mass
        deleted[node] += 1


def _row(sibling: Sibling, like: Tensor) -> Tensor:
    """What a child was drawn from; a row with all mass on it if it is sure."""
    if sibling.draft_probs is not None:
        return sibling.draft_probs
    sure = torch.zeros_like(like)
    sure[sibling.token] = 1
    return sure
