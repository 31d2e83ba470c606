"""Checks of the arguments that masks and attention share; each returns the value in a canonical form.

Arguments are typed `Any`, because the checks exist for values of the wrong type.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attention_masks._plain import plain_integer, plain_items, shown
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
    checked_topology(topology)
    if rows is None:
        return range(topology.size)
    if isinstance(rows, range) and rows.step == 1:
        nodes = rows
        inside = not rows or (rows[0] >= 0 and rows[-1] < topology.size)
    else:
        items = checked_items("rows", rows, "nodes, or None for all of them")
        nodes = tuple(checked_integer(f"rows[{i}]", node) for i, node in enumerate(items))
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


def checked_items(name: str, value: Any, kind: str) -> tuple[Any, ...]:
    """The items of a sequence; `kind` names them in the message."""
    items = plain_items(value)
    if items is None:
        raise InvalidInput(f"{name} = {shown(value)}, but it must be a sequence of {kind}")
    return items


def checked_topology(value: Any, name: str = "topology") -> Topology:
    """The value, if it is a topology."""
    if not isinstance(value, Topology):
        raise InvalidInput(
            f"{name} = {shown(value)} is a {type(value).__name__}, but it must be a Topology: "
            "attention_masks.topology(parents)"
        )
    return value


def checked_tensor(name: str, value: Any, optional: bool = False) -> None:
    """Raise `InvalidInput` unless the value is a tensor."""
    if not isinstance(value, Tensor) and not (optional and value is None):
        allowed = "a tensor, or None" if optional else "a tensor"
        raise InvalidInput(
            f"{name} = {shown(value)} is a {type(value).__name__}, but it must be {allowed}"
        )


def checked_device(value: Any) -> torch.device:
    """The value as a device."""
    try:
        return torch.device(value)
    except (TypeError, RuntimeError):
        raise InvalidInput(
            f"device = {shown(value)} is not a device: use 'cpu' or 'cuda:0'"
        ) from None


def checked_dtype(value: Any) -> torch.dtype:
    """The value, if it is a floating-point dtype."""
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise InvalidInput(
            f"dtype = {shown(value)}, but it must be a floating-point dtype: torch.float32"
        )
    return value
