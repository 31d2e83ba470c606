"""What a trace under one acceptance rule says of others, and of trees unlike those that were recorded."""

from collections.abc import Sequence

from treespec.search.errors import InvalidTrace
from treespec.tree import TreeShape
from treespec.verify import RULES, Scope

__all__ = [
    "accepts_alike",
    "by_member",
    "in_order",
    "note_on",
    "require_alike",
    "require_replayable",
]


def by_member(rule: str) -> bool:
    """Whether the text alone says which deterministic children this rule accepts (`Rule.by_member`)."""
    return rule in RULES and RULES[rule].by_member


def accepts_alike(rule: str, recorded: str, shape: TreeShape, greedy: bool) -> bool:
    """Whether a trace under one rule tells what another accepts of a tree whose children are drawn alike.

    At temperature 0 all lossless rules accept what `greedy` does. Above it those that test a single child
    by the same ratio are one rule on a chain (`Rule.on_trees`), and those that follow the text accept the
    same deterministic children (`Rule.by_member`).

    Args:
        rule: that is asked about; one that is not ours is known by its own traces alone.
        recorded: the rule of the trace.
        shape: the tree.
        greedy: whether the trace is of temperature 0.

    Example:
        >>> accepts_alike("rrsw", "rrs", TreeShape.chain(3), greedy=False)
        True
        >>> accepts_alike("traversal", "rrsw", TreeShape.kary(2, 2), greedy=False)
        False
    """
    pair = {rule, recorded}
    if len(pair) == 1 or shape.size == 1 or all(map(by_member, pair)):
        return True
    if greedy:
        return all(name in RULES and RULES[name].lossless for name in pair)
    families = ({name, *map(str, known.on_trees.values())} for name, known in RULES.items())
    return shape.is_chain and any(pair <= family for family in families)


def in_order(rule: str) -> bool:
    """Whether a child's acceptance depends on none of those after it, so that traces serve all trees."""
    return _scope(rule) is Scope.ELDERS


def note_on(rule: str) -> tuple[str, ...]:
    """What to know about rates under this rule; nothing for rules that one rate for each rank describes."""
    scope = _scope(rule)
    if scope is Scope.SIBLINGS:
        return (
            f"rule {rule!r} accepts a child the more rarely or often the more siblings it has: these rates "
            "are those of nodes with the number of children recorded",
        )
    if scope is Scope.TREE:
        return (
            f"rule {rule!r} judges more than one node at a time: how often one is accepted depends on the "
            "rest of the tree, so these rates are those of trees like the recorded ones",
        )
    return ()


def require_alike(rule: str, by: str, numbers: Sequence[set[int]]) -> None:
    """Refuse to count nodes with different numbers of children together where the rates depend on that.

    Args:
        rule: how children were accepted.
        by: "rank" counts all depths together, "depth" each for itself.
        numbers: for each depth, the numbers of children of the nodes that count.

    Raises:
        InvalidTrace: with the numbers.
    """
    if in_order(rule):
        return
    together = [set().union(*numbers)] if by == "rank" else list(numbers)
    for depth, children in enumerate(together):
        if len(children) > 1:
            where = "" if by == "rank" else f" at depth {depth}"
            apart = ", or count depths apart with by='depth'" if by == "rank" else ""
            raise InvalidTrace(
                f"under rule {rule!r} rates depend on the number of children, but nodes{where} with "
                f"{', '.join(map(str, sorted(children)))} of them would be counted together: take steps of "
                f"trees with equally many (TreeShape.kary, TreeShape.expansion){apart}"
            )


def require_replayable(rule: str, width: int, shape: TreeShape) -> None:
    """Refuse a tree that a trace under this rule does not belong to.

    Args:
        rule: how children were accepted.
        width: children at each position of the trace.
        shape: the tree.

    Raises:
        InvalidTrace: with the numbers.
    """
    if in_order(rule):
        return
    numbers = sorted({len(children) for children in shape.children if children})
    if any(number != width for number in numbers):
        there = ", ".join(map(str, numbers))
        raise InvalidTrace(
            f"under rule {rule!r} acceptance depends on the number of children, and the trace holds "
            f"{width} at each position, but the tree has nodes with {there}: replay trees whose nodes have "
            f"{width} children or none (TreeShape.kary({width}, depth)), or record the trace again with "
            "another --width"
        )


def _scope(rule: str) -> Scope:
    """Of the rule of this name; one that is not ours is taken to try children in order."""
    return RULES[rule].scope if rule in RULES else Scope.ELDERS
