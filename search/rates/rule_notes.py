"""Acceptance rules whose rates by position hold only for trees like those that were recorded."""

from collections.abc import Sequence

from treespec.search.errors import InvalidTrace

__all__ = ["note_on", "require_alike"]

BY_NUMBER = ("kseq", "canonical", "optimal_transport", "greedy_multidraft", "spechub")
"""Rules whose acceptance of a child depends on how many there are."""

BY_TREE = {
    "block": "judges a chain as a whole: how often a token is accepted depends on how many come after it, "
    "so these rates are those of chains as long as the recorded ones",
    "traversal": "goes from leaf to leaf: how often a node is accepted depends on its siblings and on all "
    "that hangs below it, so these rates are those of the recorded tree",
    "gbv": "chooses among whole paths: how often a node is accepted depends on how many paths there are "
    "and how long they are, so these rates are those of the recorded tree",
}
"""Rules that look at more than one node at a time, and what follows from that."""


def note_on(rule: str) -> tuple[str, ...]:
    """What to know about rates under this rule; nothing for rules that one rate for each rank describes."""
    if rule in BY_NUMBER:
        return (
            f"rule {rule!r} accepts a child the more rarely or often the more siblings it has: these rates "
            "are those of nodes with the number of children recorded",
        )
    return (f"rule {rule!r} {BY_TREE[rule]}",) if rule in BY_TREE else ()


def require_alike(rule: str, by: str, numbers: Sequence[set[int]]) -> None:
    """Refuse to count nodes with different numbers of children together where the rates depend on that.

    Args:
        rule: how children were accepted.
        by: "rank" counts all depths together, "depth" each for itself.
        numbers: for each depth, the numbers of children of the nodes that count.

    Raises:
        InvalidTrace: with the numbers.
    """
    if rule not in BY_NUMBER and rule not in BY_TREE:
        return
    together = [set().union(*numbers)] if by == "rank" else list(numbers)
    for depth, found in enumerate(together):
        if len(found) > 1:
            where = "" if by == "rank" else f" at depth {depth}"
            apart = ", or count depths apart with by='depth'" if by == "rank" else ""
            raise InvalidTrace(
                f"under rule {rule!r} rates depend on the number of children, but nodes{where} with "
                f"{', '.join(map(str, sorted(found)))} of them would be counted together: take steps of "
                f"trees with equally many (TreeShape.kary, TreeShape.expansion){apart}"
            )
