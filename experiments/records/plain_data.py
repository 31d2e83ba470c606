"""Convert results to plain data that JSON can hold."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any


def plain_data(value: Any) -> Any:
    """Convert a value to mappings, lists, numbers and text; NaN and infinities become None.

    Example:
        >>> from pathlib import Path
        >>> plain_data({"a": (1.5, float("nan")), "b": Path("x")})
        {'a': [1.5, None], 'b': 'x'}
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(item) for item in value]
    if hasattr(value, "tolist"):  # a NumPy array or scalar
        return plain_data(value.tolist())
    return str(value)
