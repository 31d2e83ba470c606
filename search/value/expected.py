"""The expected number of tokens that a tree emits in one step."""

import numpy as np
from jaxtyping import Float

from treespec import TreeShape
from treespec.search.errors import InvalidAcceptance
from treespec.search.traces.acceptance import Acceptance, read_rates


def expected_tokens(shape: TreeShape, acceptance: Acceptance) -> float:
    """The expected number of tokens that one step emits, the bonus token included.

    The sum over all nodes of the product of the rates on the path from the root, whose own product is 1
    (Sequoia, arXiv:2402.12374, proposition 3.4, for rates by rank). Ours also takes rates that depend on
    the depth. Exact up to rounding, in float64, without sampling or a loop over nodes.

    Args:
        shape: the tree.
        acceptance: rates by rank (`acceptance[k]` is the probability that child k of a node is the accepted
            one, whatever the number of children), or by depth and rank (row d belongs to the children of
            nodes at depth d).

    Returns:
        Tokens per step, between 1 and `shape.depth + 1`.

    Raises:
        InvalidAcceptance: if the rates are invalid or do not cover the tree.

    Example:
        >>> expected_tokens(TreeShape.chain(2), [0.5])
        1.75
    """
    rates = read_rates(acceptance)
    return float(tokens_of(shape, rates.table[None], rates.by_depth)[0])


def tokens_of(
    shape: TreeShape, tables: Float[np.ndarray, "draws levels ranks"], by_depth: bool
) -> Float[np.ndarray, "draws"]:
    """Compute `expected_tokens` of one tree under many tables of checked rates."""
    parents = _parents(shape)
    depths, ranks = _cells(parents, (tables.shape[1], tables.shape[2]), by_depth)
    node_rates = tables[:, depths, ranks]
    node_rates[:, 0] = 1.0
    return _total(parents, node_rates)


def _parents(shape: TreeShape) -> np.ndarray:
    """The parent of every node; the root is its own."""
    parents = np.array(shape.parents)
    parents[0] = 0
    return parents


def _total(parents: np.ndarray, product: np.ndarray) -> np.ndarray:
    """The sum over nodes of the products up to the root; each round doubles the reach of the products."""
    while parents.any():
        product = product * product[..., parents]
        parents = parents[parents]
    return product.sum(axis=-1)


def _cells(
    parents: np.ndarray, known: tuple[int, int], by_depth: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every node's rate; those of the root are not used."""
    nodes = np.arange(len(parents))
    order = np.argsort(parents[1:], kind="stable") + 1
    siblings = parents[order]
    ranks = np.zeros_like(nodes)
    ranks[order] = nodes[:-1] - np.searchsorted(siblings, siblings)
    _covered(ranks, known[1], "child ranks", "columns")
    depths = np.zeros_like(nodes)
    if by_depth:
        depths[1:], ancestor = 1, parents
        while ancestor.any():
            depths = depths + depths[ancestor]
            ancestor = ancestor[ancestor]
        _covered(depths - 1, known[0], "depths", "rows")
        depths = np.maximum(depths - 1, 0)
    return depths, ranks


def _covered(indices: np.ndarray, known: int, what: str, axis: str) -> None:
    """Refuse a tree with a node that has no rate."""
    worst = int(indices.argmax())
    if indices[worst] >= known:
        raise InvalidAcceptance(
            f"acceptance has rates for {known} {what}, but node {worst} needs {int(indices[worst]) + 1}: "
            f"give more {axis} (zeros, if such nodes are never accepted), or a smaller tree"
        )
