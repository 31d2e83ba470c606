"""The best tree under one distribution for each position: DDTree."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from treespec import Law, TokenTree
from treespec.checks import instance, integer, sequence
from treespec.search.errors import InvalidLimit
from treespec.search.value.optimal import optimal_tree


def marginal_tree(
    marginals: Float[Tensor, "D V"],
    root: int,
    size: int,
    *,
    branching: int | Sequence[int] | None = None,
) -> TokenTree:
    """The most probable continuations if each position has one distribution, whatever precedes it.

    Drafters that predict several positions at once (heads, diffusion) have a distribution for each position
    that does not depend on the tokens before. DDTree takes the size - 1 continuations with the largest
    products of probabilities. With these probabilities as rates by depth and rank, it is the
    `optimal_tree`, and ties are resolved as there. Children are the most probable tokens of their position,
    whatever the path: DETERMINISTIC.

    Args:
        marginals: probabilities of the tokens 1, 2, ... after the root.
        root: the last committed token.
        size: maximum number of nodes, the root included; the tree has fewer if fewer continuations have a
            positive probability.
        branching: maximum number of children of a node, or one such number for each position; None for no
            limit.

    Raises:
        InvalidArgument: if an argument has the wrong type, or the root is not one of the V tokens.
        InvalidLimit: if there is no position, or a row is not a distribution.

    Example:
        >>> tree = marginal_tree(torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]), 0, 6)
        >>> tree.shape.parents, tree.token_ids
        ((-1, 0, 0, 1, 1, 2), (0, 0, 1, 2, 1, 2))
    """
    instance("marginals", marginals, Tensor, "a tensor of probabilities, a row for each position")
    size = integer("size", size, least=1)
    rows = marginals.detach().double().cpu()
    if rows.ndim != 2 or not rows.numel():
        raise InvalidLimit(f"marginals have the shape {list(rows.shape)}, but must be [D, V]")
    root = integer("root", root, least=0, most=rows.shape[1] - 1)
    total = rows.sum(-1)
    if not (torch.isfinite(rows).all() and (rows >= 0).all() and ((total - 1).abs() < 1e-3).all()):
        raise InvalidLimit(
            "each row of marginals must be a distribution: probabilities of at least 0 that sum to 1"
        )
    limits = _limits(branching, len(rows), min(max(size - 1, 1), rows.shape[1]))
    values, tokens = (rows / total[:, None]).topk(max(limits))
    values[torch.arange(values.shape[1]) >= torch.tensor(limits)[:, None]] = 0.0
    possible = [min(int(n), size) for n in (values > 0).sum(-1)]
    level_sizes = accumulate(possible, lambda above, n: min(above * n, size), initial=1)
    size = min(size, sum(level_sizes))
    shape = optimal_tree(values.numpy(), size)
    ids = [tokens[d - 1, r] for d, r in zip(shape.depths[1:], shape.ranks[1:], strict=True)]
    return TokenTree(shape, torch.tensor([root, *map(int, ids)]), None, Law.DETERMINISTIC)


def _limits(branching: int | Sequence[int] | None, positions: int, widest: int) -> list[int]:
    """The most children of a node at each position."""
    if branching is None:
        return [widest] * positions
    if isinstance(branching, int):
        return [min(widest, integer("branching", branching, least=1))] * positions
    given = sequence("branching", branching, "integers, one for each position")
    if len(given) != positions:
        raise InvalidLimit(
            f"branching has {len(given)} numbers for {positions} positions: give one for each"
        )
    return [min(widest, integer(f"branching[{i}]", k, least=1)) for i, k in enumerate(given)]
