"""Distribute nodes of equal value among the subtrees of siblings."""

from collections.abc import Sequence


def share(wanted: int, room: Sequence[int], optional: Sequence[bool]) -> list[int]:
    """The number of tied nodes that go into each sibling's subtree.

    Among equally good choices, this follows the rule of the dynamic programme: as few children as can hold
    the wanted nodes; then as many nodes as possible in the last child's subtree, then in the last but
    one's, and so on.

    Args:
        wanted: number of tied nodes to place; between 1 and the sum of `room`.
        room: tied nodes in each sibling's subtree, the sibling itself included if it is tied.
        optional: whether the sibling itself is tied; if so, all younger ones are tied, too.

    Example:
        >>> share(3, [2, 1, 1], [False, True, True])
        [2, 1, 0]
    """
    required = optional.index(True) if True in optional else len(optional)
    children, total = required, sum(room[:required])
    while total < wanted:
        total += room[children]
        children += 1
    quotas = [0] * len(room)
    for child in reversed(range(children)):
        optional_elders = max(0, child - required)
        quotas[child] = min(room[child], wanted - optional_elders)
        wanted -= quotas[child]
    return quotas
