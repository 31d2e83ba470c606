"""Names of sampling settings, as files hold them, by which they can be compared."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

LONGEST = 30
"""Characters of a list in a name."""


def name_of(sampling: Mapping[str, Any] | None) -> str | None:
    """The name of sampling settings, such as `T=0` or `T=0.8, top_p=0.9`, as in the files of profiles.

    Args:
        sampling: temperature and truncations, as in `Trace.sampling`; None values are left out.

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
    """Whether these settings, as in `Trace.sampling`, are known to have temperature 0."""
    return (sampling or {}).get("temperature") == 0


def _short(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:g}"
    if isinstance(value, str):
        return value
    text = json.dumps(value)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... ({len(value)}, {sha256(text.encode()).hexdigest()[:6]})"
