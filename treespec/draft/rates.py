"""How often the children of a source are accepted, by depth and rank: the table that merges go by."""

from collections import Counter
from collections.abc import Iterable

from treespec.errors import InvalidArgument
from treespec.step import Step

__all__ = ["acceptance_rates"]


def acceptance_rates(steps: Iterable[Step]) -> tuple[tuple[float, ...], ...]:
    """How often a child was accepted if its parent was, by depth and rank.

    A child counts each time that its parent is on the accepted path; a depth with fewer ranks than another
    never had more. Decode texts with one source alone, other texts than those of the merge.

    Args:
        steps: of any number of texts.

    Returns:
        For each depth, 1 below the root first, the rates by rank.

    Raises:
        InvalidArgument: if no node was drafted.

    Example:
        >>> import torch
        >>> from treespec import Law, Scores, TokenTree, TreeShape, Verdict
        >>> tree = TokenTree(TreeShape((-1, 0, 0, 1)), torch.arange(4), None, Law.DETERMINISTIC)
        >>> paths = [(0,), (0, 1), (0, 1, 3), (0, 2)]
        >>> scores = Scores(torch.zeros(4, 9))
        >>> acceptance_rates(Step(tree, Verdict(path, 8), scores, (8,)) for path in paths)
        ((0.5, 0.25), (0.5,))
    """
    tried, accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for step in steps:
        shape, path = step.tree.shape, step.verdict.path
        for depth, node in enumerate(path, start=1):
            for rank, child in enumerate(shape.children[node]):
                tried[depth, rank] += 1
                accepted[depth, rank] += child in path
    if not tried:
        raise InvalidArgument("steps have no drafted node: there is nothing to measure")
    depths = range(1, 1 + max(depth for depth, _ in tried))
    widths = [max(rank for at, rank in tried if at == depth) + 1 for depth in depths]
    return tuple(
        tuple(accepted[depth, rank] / tried[depth, rank] for rank in range(width))
        for depth, width in zip(depths, widths, strict=True)
    )
