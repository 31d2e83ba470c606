"""Acceptance rates of a source's children by depth and rank, which decide the shape of merged trees."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from treespec.checks import integer, shown
from treespec.errors import InvalidArgument
from treespec.step import Step

Rates = tuple[tuple[float, ...], ...]
"""By depth, then rank: how often a child is accepted if its parent is. The last row also stands for all
greater depths; missing ranks have rate 0."""


def rate(rates: Rates, depth: int, rank: int) -> float:
    """The rate of a child at a depth (1 for children of the root) with `rank` elder siblings."""
    by_rank = rates[min(depth, len(rates)) - 1]
    return by_rank[rank] if rank < len(by_rank) else 0.0


def acceptance_rates(steps: Iterable[Step], *, least: int = 1) -> Rates:
    """How often a child was accepted if its parent was, by depth and rank.

    A child counts each time its parent is on the accepted path. A depth has as many ranks as were ever
    drafted there. Decode with one source alone, on other texts than those of the merge.

    Args:
        steps: steps of any number of texts.
        least: how often a child must have counted to get a rate. The ranks of a depth end before the first
            that counted less often, and so do the depths: a merge never drafts a missing rank, and uses the
            last depth for all greater depths.

    Returns:
        The rates by rank for each depth, starting with the children of the root.

    Raises:
        InvalidArgument: if no node was drafted, or the first child of the root less than `least` times.

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
    least = integer("least", least, least=1)
    if tried[1, 0] < least:
        raise InvalidArgument(
            f"the first child of the root was drafted {tried[1, 0]} times, but least = {least}: take more "
            "steps"
        )

    levels: list[tuple[float, ...]] = []
    while True:
        row, depth = list[float](), len(levels) + 1
        while tried[depth, len(row)] >= least:
            row.append(accepted[depth, len(row)] / tried[depth, len(row)])
        if not row:
            return tuple(levels)
        levels.append(tuple(row))


def checked_rates(
    given: Mapping[str, Sequence[Sequence[float]]], sources: Collection[str]
) -> dict[str, Rates]:
    """The argument `rates` of a merge: for each source by name, one row of rates by rank for each depth."""
    require_names("rates", given, sources)
    checked = {name: tuple(tuple(map(float, row)) for row in given[name]) for name in sources}
    for name, rows in checked.items():
        if not rows or not all(0 <= entry <= 1 for row in rows for entry in row):
            raise InvalidArgument(
                f"rates[{name!r}] = {shown(given[name])}, but must be rows of probabilities"
            )
    return checked


def require_names(argument: str, given: Mapping[str, Any], sources: Collection[str]) -> None:
    """Refuse a mapping whose names are not exactly those of a merge's sources."""
    if set(given) != set(sources):
        raise InvalidArgument(
            f"{argument} has entries for {', '.join(given)}, but must have one for each of the sources "
            f"{', '.join(sources)}"
        )
