"""Traversal verification: decide on a tree from its leaves up."""

from collections.abc import Iterator

import torch
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.one_by_one import MIXES, Sibling, siblings
from treespec.verify.rule import Scope, ratio, require_number, rule


@rule(
    laws={Law.IID, Law.WITHOUT_REPLACEMENT},
    mixes=MIXES,
    reference="arXiv:2505.12398",
    distinct=True,
    scope=Scope.TREE,
)
def traversal(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test the leaves in depth-first order; delete a rejected leaf and update its parent's rows.

    Traversal verification (arXiv:2505.12398). The root has share 1, child x of node v has share
    a(x) = min(1, a(v) p_v(x) / q_v(x)). The first leaf c is accepted with probability a(c): its path is
    the verdict's, and the bonus is drawn from p_c. Otherwise its parent v is updated with
    r = [a(v) p_v - q_v]+ and s = sum r: p_v <- r / s, a(v) <- s / (s + 1 - a(v)) (1 at the root), and q_v
    loses the token if the children were drawn without replacement. A node whose children are all deleted
    is a leaf. On a chain this is block verification. Ours deletes a subtree of share 0 at once, and uses
    for q_v the distribution that the next child was drawn from, so it covers mixed trees too.

    Unlike top-down rules it reads the rows of every node that it passes, which is most of the tree.

    Args:
        tree: at each node, children drawn i.i.d. or without replacement from `draft_probs`; or a mixed
            tree.
        target_probs: `[V]` rows by node.
        coins: one coin for each tested leaf and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law, repeated siblings drawn without replacement, or a
            visited child that the draft could not have drawn.
    """
    shape = tree.shape
    rows: dict[int, Tensor] = {}
    shares: dict[int, Tensor] = {0: torch.ones_like(target_probs[0][0])}
    waiting: dict[int, Iterator[Sibling]] = {}
    draft: dict[
        int, Tensor
    ] = {}  # by node: the distribution of its first child that is not deleted
    deleted = [0] * shape.size  # by node: number of deleted children
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
        surplus = (shares[node] * rows[node] - draft[node]).clamp_min(0)
        mass = surplus.sum()
        require_number(mass, node)
        if mass > 0:
            rows[node] = surplus / mass
        if node:
            shares[node] = mass / (mass + (1 - shares[node])) if mass > 0 else mass
        deleted[node] += 1


def _row(sibling: Sibling, like: Tensor) -> Tensor:
    """The distribution that a child was drawn from; one-hot for a deterministic child."""
    if sibling.draft_probs is not None:
        return sibling.draft_probs
    one_hot = torch.zeros_like(like)
    one_hot[sibling.token] = 1
    return one_hot
