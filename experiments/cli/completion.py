"""Shell completion of overrides: the keys of a config and their values.

It reads the JSON schema from a file, so that completion imports nothing heavy and is fast.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

EXPERIMENTS = Path(__file__).parents[1]
SCHEMA = EXPERIMENTS / "config" / "config.schema.json"

SHAPES = ("chain:4", "kary:2x3", "chains:2x4", "expansion:3x2x1", "optimal:16")
"""Spellings offered as the value of a shape, besides its kinds."""

TAGS = ("kind", "source")
"""Keys whose value tells which of several kinds a mapping is."""

MOST_ITEMS = 50
"""Number of list items whose keys are offered."""


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete `models.dt` to `models.dtype=`, and `models.dtype=f` to the dtypes that begin with `f`.

    Shells that split words at the equals sign (bash) pass the key as the previous word.
    """
    words = [str(word) for word in ctx.params.get("overrides") or ()]
    words = words[:-1] if words[-1:] == ["="] else words
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    if words and "=" not in words[-1] and "=" not in incomplete:
        values = values_of(schema, words[-1])
        return [value for value in values if value.startswith(incomplete)]
    start, equals, value_start = incomplete.partition("=")
    if equals:
        values = values_of(schema, start)
        return [f"{start}={value}" for value in values if value.startswith(value_start)]
    data = _config(str(ctx.params.get("config") or ""))
    return [f"{key}=" for key in keys_of(schema, data) if key.startswith(start)]


def keys_of(schema: Mapping[str, Any], data: Any) -> list[str]:
    """All dotted keys of a config; in lists, those of the items that the config has."""
    return [key for key in _keys(schema, schema, data, "") if not key.startswith("sweep")]


def values_of(schema: Mapping[str, Any], key: str) -> list[str]:
    """The values that a key accepts, as far as they can be listed: names, kinds, true and false, null."""
    schemas: list[Mapping[str, Any]] = [schema]
    for part in key.replace("[", ".").replace("]", "").split("."):
        schemas = [
            inner
            for outer in schemas
            for alternative in _alternatives(schema, outer)
            for inner in _inside(alternative, part)
        ]
    values: list[str] = []
    for of_value in schemas:
        for alternative in _alternatives(schema, of_value):
            values += _listed(alternative)
            if alternative.get("properties", {}).get("depth") and key.endswith("shape"):
                values += SHAPES
    return list(dict.fromkeys(values))


def _keys(
    schema: Mapping[str, Any], value: Mapping[str, Any], data: Any, path: str
) -> Iterator[str]:
    """The path of a value and, recursively, the paths of all keys inside."""
    alternatives = _alternatives(schema, value)
    mappings = [mapping for mapping in alternatives if "properties" in mapping]
    tag = next(
        (key for key in TAGS if all(key in mapping["properties"] for mapping in mappings)), "kind"
    )
    given = data if isinstance(data, dict) else {}
    kind = given.get(tag)
    of_kind = [
        mapping for mapping in mappings if mapping["properties"].get(tag, {}).get("const") == kind
    ]
    if path:
        yield path
    if len(mappings) > 1 and kind is None:
        yield f"{path}.{tag}"
    seen: set[str] = set()
    for mapping in (of_kind or mappings) if kind is not None or len(mappings) == 1 else ():
        for name, inner in mapping["properties"].items():
            if name not in seen:
                seen.add(name)
                below = f"{path}.{name}" if path else name
                yield from _keys(schema, inner, given.get(name), below)
    for alternative in alternatives:
        if alternative.get("type") == "array" and "items" in alternative and isinstance(data, list):
            if data and isinstance(data[0], dict):
                for i, item in enumerate(data[:MOST_ITEMS]):
                    yield from _keys(schema, alternative["items"], item, f"{path}.{i}")
            break


def _alternatives(schema: Mapping[str, Any], value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives that the schema of a value allows, with references resolved."""
    if "$ref" in value:
        return _alternatives(schema, schema["$defs"][value["$ref"].rpartition("/")[2]])
    for word in ("anyOf", "oneOf"):
        if word in value:
            return [
                alternative for inner in value[word] for alternative in _alternatives(schema, inner)
            ]
    return [value]


def _inside(value: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The schema at a key or an index inside a value; empty if there is none."""
    if part.isdigit():
        return [value["items"]] if "items" in value else []
    return [value["properties"][part]] if part in value.get("properties", {}) else []


def _listed(value: Mapping[str, Any]) -> Sequence[str]:
    if "const" in value:
        return [str(value["const"])]
    if "enum" in value:
        return [str(name) for name in value["enum"]]
    return {"boolean": ["true", "false"], "null": ["null"]}.get(str(value.get("type")), [])


def _config(name: str) -> Any:
    """The parsed config; None if it cannot be read (the command itself reports why)."""
    import yaml

    shipped = EXPERIMENTS / "configs" / f"{name}.yaml"
    path = Path(name) if Path(name).is_file() or not name.isidentifier() else shipped
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
