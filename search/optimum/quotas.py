"""How nodes that are worth the same are shared out among the subtrees of siblings."""

from collections.abc import Sequence

__all__ = ["share"]


def share(wanted: int, room: Sequence[int], optional: Sequence[bool]) -> list[int]:
    """How many of the tied nodes go into each sibling's subtree.

    The rule of the dynamic programme, where any choice is as good: as few children as can hold what is
    wanted; then as many nodes as possible in the last child's subtree, the last but one's, and so on.

    Args:
        wanted: tied nodes to place; between 1 and the sum of `room`.
        room: tied nodes in each sibling's subtree, the sibling itself included if it is tied.
        optional: whether the sibling itself is tied; if so, so are the younger ones.

    Example:
        >>> share(3, [2, 1, 1], [False, True, True])
        [2, 1, 0]
    """
    sure = optional.index(True) if True in optional else len(optional)
    children, total = sure, sum(room[:sure])
    while total < wanted:
        total += room[children]
        children += 1
    quotas = [0] * len(room)
    for child in reversed(range(children)):
        elders = max(0, child - sure)
        quotas[child] = min(room[child], wanted - elders)
        wanted -= quotas[child]
    return quotas
