"""Checks of the arguments that masks and attention share; each returns the value in a canonical form.

Arguments are typed `Any`, because the checks exist for values of the wrong type.
"""

from collections.abc import Iterable
from typing import Any

from attention_masks._plain import plain_integer, shown
from attention_masks.errors import InvalidInput
from attention_masks.topology import Topology


def checked_prefix_len(prefix_len: Any) -> int:
    """The number of cached keys before node 0, at least 0."""
    value = checked_integer("prefix_len", prefix_len)
    if value < 0:
        raise InvalidInput(
            f"prefix_len = {prefix_len}, but it counts cached keys: it must be at least 0"
        )
    return value


def checked_window(window: Any) -> int | None:
    """The width of the sliding window, at least 1, or None for no window."""
    if window is None:
        return None
    value = checked_integer("window", window)
    if value < 1:
        raise InvalidInput(
            f"window = {window}, but a row sees at least itself: it must be at least 1, or None"
        )
    return value


def checked_rows(topology: Topology, rows: Iterable[Any] | None) -> range | tuple[int, ...]:
    """The queried nodes, as a range if they are consecutive (a view instead of a gather)."""
    if rows is None:
        return range(topology.size)
    if isinstance(rows, range) and rows.step == 1:
        nodes = rows
        inside = not rows or (rows[0] >= 0 and rows[-1] < topology.size)
    else:
        nodes = tuple(checked_integer(f"rows[{i}]", node) for i, node in enumerate(rows))
        inside = not nodes or (min(nodes) >= 0 and max(nodes) < topology.size)
    if not nodes:
        raise InvalidInput("rows is empty: name at least one node, or None for all of them")
    if not inside:
        i, node = next((i, n) for i, n in enumerate(nodes) if not 0 <= n < topology.size)
        raise InvalidInput(
            f"rows[{i}] = {node}, but the tree has {topology.size} nodes: "
            f"rows must be in 0..{topology.size - 1}"
        )
    if isinstance(nodes, tuple) and nodes == tuple(range(nodes[0], nodes[0] + len(nodes))):
        return range(nodes[0], nodes[0] + len(nodes))
    return nodes


def checked_integer(name: str, value: Any) -> int:
    """The value as a Python integer."""
    number = plain_integer(value)
    if number is None:
        raise InvalidInput(f"{name} = {shown(value)}, but it must be a plain integer")
    return number
