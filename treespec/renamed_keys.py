"""Keys that files written before hold under another name."""

from typing import Any

__all__ = ["RENAMED_MODELS_KEYS", "with_new_names"]

RENAMED_MODELS_KEYS = {"grow": "enlarge"}
"""Of the mapping `models` of a config: former names, and what they are called now."""


def with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """The same data, with the keys of its mapping `models` as they are called now.

    Args:
        data: read from a file: a config, or what a trace or a profile says about itself; not changed.

    Returns:
        A copy if a key has another name now, else the data itself.

    Example:
        >>> with_new_names({"models": {"target": "embedded", "grow": "50M"}, "seed": 3})
        {'models': {'target': 'embedded', 'enlarge': '50M'}, 'seed': 3}
    """
    models = data.get("models")
    if not isinstance(models, dict) or not RENAMED_MODELS_KEYS.keys() & models.keys():
        return data
    renamed = {RENAMED_MODELS_KEYS.get(key, key): value for key, value in models.items()}
    return {**data, "models": renamed}
