"""The token that a drafter holds to be the best one after each node of its tree."""

from collections.abc import Sequence

from treespec.errors import InvalidTree
from treespec.protocols import Drafter, RanksNext
from treespec.tree import TokenTree


def best_next(drafter: Drafter, tree: TokenTree, nodes: Sequence[int]) -> list[int | None]:
    """The best next token after these nodes of the drafter's latest tree, None where it has no row.

    A drafter that has rows at nodes without children says so itself (`treespec.protocols.RanksNext`). For
    all others, a node has a row if it has children, and the best token is read from the tree: the most
    probable one of the distribution that the children were drawn from, or the first of deterministic
    children, which are in rank order (for a text source: in the order of its counts or matches). In a
    mixed tree the first group counts, which is decided first.

    Args:
        drafter: what proposed the tree.
        tree: its latest proposal.
        nodes: nodes of the tree.

    Raises:
        InvalidTree: if the drafter answers for another number of nodes than its tree has.

    Example:
        >>> import torch
        >>> from treespec import Law, TreeShape
        >>> from treespec.draft import NoDrafter
        >>> tree = TokenTree(TreeShape((-1, 0, 0)), torch.tensor([5, 7, 6]), None, Law.DETERMINISTIC)
        >>> best_next(NoDrafter(), tree, [0, 1])
        [7, None]
    """
    if not isinstance(drafter, RanksNext):
        return [from_children(tree, node) for node in nodes]
    ranked = drafter.best_next()
    if len(ranked) != tree.shape.size:
        raise InvalidTree(
            f"{type(drafter).__name__}.best_next gives {len(ranked)} tokens for a tree of "
            f"{tree.shape.size} nodes: one for each node, None where there is no row"
        )
    return [ranked[node] for node in nodes]


def from_children(tree: TokenTree, node: int) -> int | None:
    """The best token of the row that a node's children come from, None for a node without children."""
    groups = tree.groups_of(node)
    if not groups:
        return None
    row = groups[0].row
    if row is None or tree.draft_probs is None:
        return tree.token_ids[groups[0].children[0]]
    return int(tree.draft_probs[row].argmax())
