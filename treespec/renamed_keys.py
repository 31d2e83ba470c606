"""Keys that older files hold under a former name."""

from typing import Any

__all__ = ["RENAMED_MODELS_KEYS", "with_new_names"]

RENAMED_MODELS_KEYS = {"grow": "enlarge"}
"""Keys of the mapping `models` of a config: former name to current name."""


def with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """The same data with the current names of the keys of its mapping `models`.

    Args:
        data: read from a file: a config, or the description in a trace or profile; not modified.

    Returns:
        A copy if a key was renamed, else the data itself.

    Example:
        >>> with_new_names({"models": {"target": "embedded", "grow": "50M"}, "seed": 3})
        {'models': {'target': 'embedded', 'enlarge': '50M'}, 'seed': 3}
    """
    models = data.get("models")
    if not isinstance(models, dict) or not RENAMED_MODELS_KEYS.keys() & models.keys():
        return data
    renamed = {RENAMED_MODELS_KEYS.get(key, key): value for key, value in models.items()}
    return {**data, "models": renamed}
