"""Sampling settings as files hold them: in words, so that they can be compared."""

from collections.abc import Mapping
from typing import Any

__all__ = ["is_greedy", "name_of"]


def name_of(sampling: Mapping[str, Any] | None) -> str | None:
    """Such as `T=0` or `T=0.8, top_p=0.9`, as `treespec profile` names the settings of its times.

    Args:
        sampling: temperature, and truncations that are not None; as `Trace.sampling` has them.

    Returns:
        The name; None if no temperature is known.

    Example:
        >>> name_of({"temperature": 0.8, "top_k": None, "top_p": 0.9})
        'T=0.8, top_p=0.9'
    """
    known = {key: value for key, value in (sampling or {}).items() if value is not None}
    if "temperature" not in known:
        return None
    temperature = known.pop("temperature")
    return ", ".join([f"T={_short(temperature)}", *(f"{k}={_short(v)}" for k, v in known.items())])


def is_greedy(sampling: Mapping[str, Any] | None) -> bool:
    """Whether these settings, as `Trace.sampling` has them, are known to be those of temperature 0."""
    return (sampling or {}).get("temperature") == 0


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
