"""What a trace under one acceptance rule implies for other rules and for other trees."""

from treespec.search.errors import InvalidTrace
from treespec.tree import TreeShape
from treespec.verify import RULES, Scope


def by_member(rule: str) -> bool:
    """Whether the text alone determines which deterministic children a rule accepts (`Rule.by_member`)."""
    return rule in RULES and RULES[rule].by_member


def accepts_alike(rule: str, recorded: str, shape: TreeShape, greedy: bool) -> bool:
    """Whether a rule accepts the same nodes of a tree as the recorded rule, if children are drawn alike.

    At temperature 0 all lossless rules accept what `greedy` accepts. Above it, rules that test a single
    child by the same ratio are equal on chains (`Rule.on_trees`), and rules that follow the text accept the
    same deterministic children (`Rule.by_member`).

    Args:
        rule: the rule in question; rules of plug-ins are known from their own traces only.
        recorded: the rule of the trace.
        shape: the tree.
        greedy: whether the trace was recorded at temperature 0.

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
    """Whether acceptance does not depend on younger siblings, so that a trace serves all trees."""
    return _scope(rule) is Scope.ELDERS


def note_on(rule: str) -> tuple[str, ...]:
    """A note on rates under this rule; none if one rate for each rank describes the rule."""
    if _scope(rule) is Scope.SIBLINGS:
        return (
            f"rule {rule!r} accepts a child more or less often depending on its number of siblings: these "
            "rates hold for nodes with the recorded number of children",
        )
    return ()


def require_replayable(rule: str, width: int, shape: TreeShape) -> None:
    """Refuse a tree for which a trace under this rule is not valid."""
    if in_order(rule):
        return
    numbers = sorted({len(children) for children in shape.children if children})
    if any(number != width for number in numbers):
        listed = ", ".join(map(str, numbers))
        raise InvalidTrace(
            f"under rule {rule!r} acceptance depends on the number of children, and the trace holds "
            f"{width} at each position, but the tree has nodes with {listed}: replay trees whose nodes "
            f"have {width} children or none (TreeShape.kary({width}, depth)), or record the trace again "
            "with another --width"
        )


def _scope(rule: str) -> Scope:
    """The scope of the rule of this name; rules of plug-ins are assumed to try children in order."""
    return RULES[rule].scope if rule in RULES else Scope.ELDERS
