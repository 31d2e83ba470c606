"""The best tree under one distribution for each position: DDTree."""

from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from treespec import Law, TokenTree
from treespec.door import instance, integer
from treespec.search.errors import InvalidLimit
from treespec.search.optimum.optimal import optimal_tree

__all__ = ["marginal_tree"]


def marginal_tree(
    marginals: Float[Tensor, "D V"], root: int, size: int, *, branching: int | None = None
) -> TokenTree:
    """The continuations of largest probability where each position has one distribution, best first.

    Drafters that guess several positions at once (heads, diffusion) know a distribution for each position,
    and not how it depends on the tokens before. DDTree takes the size - 1 continuations whose products of
    probabilities are largest. With these as rates by depth and rank that is `optimal_tree`, and ties are
    decided as there. Children are the most probable tokens of their position, whatever the path:
    DETERMINISTIC.

    Args:
        marginals: probabilities of the tokens 1, 2, ... after the root.
        root: the last committed token.
        size: most nodes, the root included; fewer where no more continuations have a probability.
        branching: most children of a node; None for no limit.

    Raises:
        InvalidArgument: if an argument is of another kind.
        InvalidLimit: if there is no position, or a row is no distribution.

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
    total = rows.sum(-1)
    if not (torch.isfinite(rows).all() and (rows >= 0).all() and ((total - 1).abs() < 1e-3).all()):
        raise InvalidLimit("a row of marginals is no distribution: at least 0, sum 1")
    widest = min(max(size - 1, 1), rows.shape[1])
    if branching is not None:
        widest = min(widest, integer("branching", branching, least=1))
    values, tokens = (rows / total[:, None]).topk(widest)
    possible = [min(int(n), size) for n in (values > 0).sum(-1)]
    level = accumulate(possible, lambda before, n: min(before * n, size), initial=1)
    size = min(size, sum(level))
    shape = optimal_tree(values.numpy(), size)
    ids = [tokens[d - 1, r] for d, r in zip(shape.depths[1:], shape.ranks[1:], strict=True)]
    return TokenTree(shape, torch.tensor([root, *map(int, ids)]), None, Law.DETERMINISTIC)
