"""How often the children of a source are accepted, by depth and rank: the table that merges go by."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from treespec.door import instance, integer, number, sequence, shown
from treespec.errors import InvalidArgument
from treespec.step import Step

__all__ = ["Rates", "acceptance_rates", "checked_rates", "rate", "require_names"]

Rates = tuple[tuple[float, ...], ...]
"""By depth, then rank: how often a child is accepted if its parent is. The last depth stands for deeper
ones; a rank that is missing is never accepted."""


def rate(rates: Rates, depth: int, rank: int) -> float:
    """Of a child at a depth (1 below the root) with so many elder siblings."""
    of_depth = rates[min(depth, len(rates)) - 1]
    return of_depth[rank] if rank < len(of_depth) else 0.0


def acceptance_rates(steps: Iterable[Step], *, least: int = 1) -> Rates:
    """How often a child was accepted if its parent was, by depth and rank.

    A child counts each time that its parent is on the accepted path; a depth with fewer ranks than another
    never had more. Decode texts with one source alone, other texts than those of the merge.

    Args:
        steps: of any number of texts.
        least: how often a child must have counted to have a rate. Of a depth the ranks end before the first
            that has not, and so do the depths: a merge drafts no such rank, and takes the last depth for
            all that are deeper.

    Returns:
        For each depth, 1 below the root first, the rates by rank.

    Raises:
        InvalidArgument: if no node was drafted, or none so often.

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


def checked_rates(given: Any, sources: Collection[str]) -> dict[str, Rates]:
    """Rates by source, as an argument.

    Args:
        given: by name of the source, for each depth a row of rates, by rank.
        sources: names of all sources.

    Raises:
        InvalidArgument: if these are not the sources, or a rate is no probability.
    """
    instance("rates", given, Mapping, "a mapping of the sources' names to rates")
    require_names("rates", given, sources)
    checked: dict[str, Rates] = {}
    for name in sources:
        rows = sequence(f"rates[{name!r}]", given[name], "rows of rates, one for each depth")
        if not rows:
            raise InvalidArgument(f"rates[{name!r}] is empty: give a row for depth 1 at least")
        checked[name] = tuple(
            tuple(
                _rate(f"rates[{name!r}][{i}]", x)
                for x in sequence(f"rates[{name!r}][{i}]", row, "rates")
            )
            for i, row in enumerate(rows)
        )
    return checked


def require_names(argument: str, given: Mapping[str, Any], sources: Collection[str]) -> None:
    """Refuse a mapping that leaves a source of a merge out, or names another.

    Raises:
        InvalidArgument: naming them.
    """
    if set(given) != set(sources):
        missing, unknown = (
            ", ".join(sorted(map(str, x)))
            for x in (set(sources) - set(given), set(given) - set(sources))
        )
        raise InvalidArgument(
            f"{argument} must be those of the sources"
            + (f"; missing: {missing}" if missing else "")
            + (f"; no source: {unknown}" if unknown else "")
            + f" (the sources are {', '.join(sources)})"
        )


def _rate(name: str, given: Any) -> float:
    value = number(name, given)
    if not 0 <= value <= 1:
        raise InvalidArgument(f"{name} = {shown(given)}, but rates are probabilities: 0 to 1")
    return float(value)
