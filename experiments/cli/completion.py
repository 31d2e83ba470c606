"""Shell completion of overrides: the keys of a config.

It reads the JSON schema from a file, so that completion imports nothing heavy and is fast.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

EXPERIMENTS = Path(__file__).parents[1]
SCHEMA = EXPERIMENTS / "config" / "config.schema.json"

TAGS = ("kind", "source")
"""Keys whose value tells which of several kinds a mapping is."""

MOST_ITEMS = 50


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete `models.dt` to `models.dtype=`."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    data = _config(str(ctx.params.get("config") or ""))
    # all dotted keys of a config; in lists, those of the items that the config has
    keys = [key for key in _keys(schema, schema, data, "") if not key.startswith("sweep")]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def _keys(
    schema: Mapping[str, Any], value: Mapping[str, Any], data: Any, path: str
) -> Iterator[str]:
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


def _config(name: str) -> Any:
    """The parsed config; None if it cannot be read (the command itself reports why)."""
    import yaml

    shipped = EXPERIMENTS / "configs" / f"{name}.yaml"
    path = Path(name) if Path(name).is_file() or not name.isidentifier() else shipped
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
