"""Completion of overrides in the shell: keys of a config and their values.

It reads the JSON schema as a file, so that nothing heavy is imported while somebody waits for a word.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

__all__ = ["complete_override", "keys_of", "values_of"]

EXPERIMENTS = Path(__file__).parents[1]
SCHEMA = EXPERIMENTS / "config" / "config.schema.json"
LARGEST_CONFIG = 2**18

SHAPES = ("chain:4", "kary:2x3", "chains:2x4", "expansion:3x2x1", "optimal:16")
"""Offered for a shape, besides its kinds."""

TAGS = ("kind", "source")
"""Keys that say which of several mappings one is."""

MOST_ITEMS = 50
"""Items of a list whose keys are offered."""


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """`models.dt` becomes `models.dtype=`, and `models.dtype=f` the names that begin like this.

    Shells that split words at the equals sign (bash) give the key as a word before.
    """
    given = [str(word) for word in ctx.params.get("overrides") or ()]
    given = given[:-1] if given[-1:] == ["="] else given
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    data = _config(str(ctx.params.get("config") or ""))
    if given and "=" not in given[-1] and "=" not in incomplete:
        return [text for text in values_of(schema, data, given[-1]) if text.startswith(incomplete)]
    key, equals, value = incomplete.partition("=")
    if equals:
        texts = values_of(schema, data, key)
        return [f"{key}={text}" for text in texts if text.startswith(value)]
    return [f"{text}=" for text in keys_of(schema, data) if text.startswith(key)]


def keys_of(schema: Mapping[str, Any], data: Any) -> list[str]:
    """All keys of a config with dots; those of lists for the items that the config has.

    Args:
        schema: the JSON schema of configs.
        data: the config as it was read; None if it could not be.
    """
    keys = list(_keys(schema, schema, data, ""))
    return [key for key in keys if not key.startswith("sweep")]


def values_of(schema: Mapping[str, Any], data: Any, key: str) -> list[str]:
    """What may stand at a key, as far as it can be listed: names, kinds, true and false, null."""
    here: list[Mapping[str, Any]] = [schema]
    for part in key.replace("[", ".").replace("]", "").split("."):
        data = _at(data, part)
        here = [
            inner for value in here for one in _plain(schema, value) for inner in _inside(one, part)
        ]
    values: list[str] = []
    for value in here:
        for one in _plain(schema, value):
            values += _listed(one)
            if one.get("properties", {}).get("depth") and key.endswith("shape"):
                values += SHAPES
    return list(dict.fromkeys(values))


def _keys(
    schema: Mapping[str, Any], value: Mapping[str, Any], data: Any, path: str
) -> Iterator[str]:
    """The keys within a value, each with its path, the value's own included."""
    ways = _plain(schema, value)
    mappings = [one for one in ways if "properties" in one]
    tag = next((key for key in TAGS if all(key in one["properties"] for one in mappings)), "kind")
    kind = data.get(tag) if isinstance(data, dict) else None
    of_kind = [one for one in mappings if one["properties"].get(tag, {}).get("const") == kind]
    if path:
        yield path
    if len(mappings) > 1 and kind is None:
        yield f"{path}.{tag}"
    seen: set[str] = set()
    for one in (of_kind or mappings) if kind is not None or len(mappings) == 1 else ():
        for name, inner in one["properties"].items():
            if name not in seen:
                seen.add(name)
                below = f"{path}.{name}" if path else name
                yield from _keys(schema, inner, _at(data, name), below)
    for one in ways:
        if one.get("type") == "array" and "items" in one and isinstance(data, list):
            if data and isinstance(data[0], dict):
                for i, item in enumerate(data[:MOST_ITEMS]):
                    yield from _keys(schema, one["items"], item, f"{path}.{i}")
            break


def _plain(schema: Mapping[str, Any], value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives that a value has, references followed."""
    if "$ref" in value:
        return _plain(schema, schema["$defs"][value["$ref"].rpartition("/")[2]])
    for word in ("anyOf", "oneOf"):
        if word in value:
            return [one for inner in value[word] for one in _plain(schema, inner)]
    return [value]


def _inside(value: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """What stands in a value at a key or an index."""
    if part.isdigit():
        return [value["items"]] if "items" in value else []
    return [value["properties"][part]] if part in value.get("properties", {}) else []


def _at(data: Any, part: str) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list) and part.isdigit() and int(part) < len(data):
        return data[int(part)]
    return None


def _listed(value: Mapping[str, Any]) -> Sequence[str]:
    if "const" in value:
        return [str(value["const"])]
    if "enum" in value:
        return [str(one) for one in value["enum"]]
    return {"boolean": ["true", "false"], "null": ["null"]}.get(str(value.get("type")), [])


def _config(name: str) -> Any:
    """What a config holds; None if it cannot be read, about which the command will have more to say."""
    import yaml

    shipped = EXPERIMENTS / "configs" / f"{name}.yaml"
    path = Path(name) if Path(name).is_file() or not name.isidentifier() else shipped
    try:
        if path.stat().st_size <= LARGEST_CONFIG:
            return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        pass
    return None
