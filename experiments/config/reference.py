"""The reference of configs: a JSON schema, by which editors complete, and docs/configs.md.

    python -m treespec.experiments.config.reference

writes the page and `config.schema.json`, which the completion of the shell reads. Both are made of the
models of configs, whose fields say what they mean; a test holds the files against them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.config.base import LARGEST_NUMBER
from treespec.experiments.config.schema import Config, refresh
from treespec.experiments.config.spellings import EXAMPLES, SPELLINGS
from treespec.whole_file import write_whole

__all__ = ["PAGE", "SCHEMA", "config_schema", "reference_page", "schema_text"]

SCHEMA = Path(__file__).with_name("config.schema.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "configs.md"

HEAD = """# Configs

Every key of a config. Made by `python -m treespec.experiments.config.reference` from the descriptions in
the code; a test holds this page against them. `treespec init my.yaml` writes a config to begin with,
`treespec configs` lists those that are shipped, and `treespec configs NAME` prints one.

An editor with a YAML language server completes the keys of a config and says what they mean, if the schema
is named at its head:

```console
$ treespec configs --schema > treespec.schema.json
$ head -1 my.yaml
# yaml-language-server: $schema=treespec.schema.json
```

Every key can be overridden on the command line: `models.dtype=float32`, `methods.3.shape=kary:2x3`. Where
a key has kinds, its `kind` says which other keys there are.
"""

_TITLES = {
    "Config": "The whole config",
    "ModelsConfig": "models",
    "SamplingConfig": "samplings",
    "SearchConfig": "search",
    "Until": "until",
    "ModelDraft": "draft: model",
}
_GROUPS = (
    ("prompts", "One of these kinds.", ("Prompts",)),
    ("methods", "A list of these kinds.", ("Method",)),
    ("shape", "Of a method of kind `tree`: one of these kinds, or spelled as {}.", ("Shape", "Growth")),
)  # fmt: skip

_WORDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}

_SWEEP = {
    "type": "object",
    "description": "A grid for `treespec sweep`: lists of values by key, such as `seed: [0, 1]`. "
    "One experiment has none.",
    "additionalProperties": {"type": "array", "minItems": 1},
}


def config_schema() -> dict[str, Any]:
    """The JSON schema of a config as it is written in YAML; every property has a description.

    It names the parts that are registered: those of plug-ins too, if they are loaded.
    """
    refresh()
    schema = Config.model_json_schema(mode="validation")
    for part in schema["$defs"].values():
        for key in ("kind", "source"):
            if "const" in part["properties"].get(key, {}):
                about = _first_sentence(part["description"])
                part["properties"][key].setdefault("description", about)
        for key, value in part["properties"].items():
            value.pop("title", None)
            value.setdefault("description", f"A setting `{key}` of a plug-in.")
    for value in schema["properties"].values():
        value.pop("title", None)
    schema["properties"]["sweep"] = _SWEEP
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "treespec config"}
    return head | {key: value for key, value in schema.items() if key != "title"}


def schema_text() -> str:
    """The schema as a file has it."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def reference_page() -> str:
    """docs/configs.md."""
    schema = config_schema()
    parts: dict[str, dict[str, Any]] = schema["$defs"]
    sections = [HEAD, _section("##", "The whole config", schema)]
    for name, title in _TITLES.items():
        if name in parts:
            sections.append(_section("##", title, parts[name]))
    spellings = ", ".join(f"`{example}`" for example, _ in SPELLINGS.values())
    grouped = tuple(ending for *_, endings in _GROUPS for ending in endings)
    for name, part in parts.items():
        if name not in _TITLES and not name.endswith(grouped):
            source = part["properties"].get("source")
            title = name if source is None else f"draft: {source['default']}"
            sections.append(_section("##", title, part))
    for title, about, endings in _GROUPS:
        sections.append(f"## {title}\n\n{about.format(spellings)}\n")
        for part in parts.values():
            kind = part["properties"].get("kind")
            if kind is not None and part["title"].endswith(endings):
                sections.append(_section("###", kind["const"], part))
    tree = parts["TreeMethod"]["properties"]
    sections += [_names(key, tree[key]) for key in ("law", "rule")]
    return "\n".join(sections)


def _names(key: str, value: Mapping[str, Any]) -> str:
    """A heading and a table of all names that a key takes."""
    named = next(one for one in _leaves(value) if "enumDescriptions" in one)
    lines = [
        f"## {key}",
        "",
        " ".join(value["description"].split()),
        "",
        "| name | |",
        "| --- | --- |",
    ]
    pairs = zip(named["enum"], named["enumDescriptions"], strict=True)
    return "\n".join([*lines, *(f"| `{name}` | {about} |" for name, about in pairs), ""])


def _leaves(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a value that have none themselves."""
    for one in value.get("anyOf", ()):
        yield from _leaves(one)
    if "anyOf" not in value:
        yield value


def _section(mark: str, title: str, part: Mapping[str, Any]) -> str:
    """A heading, what the part is, and a table of its keys."""
    about = " ".join(part["description"].split("\n\n"))
    lines = [f"{mark} {title}", "", " ".join(about.split()), ""]
    if title in EXAMPLES and part["title"].endswith(("Shape", "Growth")):
        lines += [f"`shape: {EXAMPLES[title]}`", ""]
    keys = {key: value for key, value in part["properties"].items() if key != "kind"}
    if not keys:
        return "\n".join(lines)
    lines += ["| key | values | default | |", "| --- | --- | --- | --- |"]
    for key, value in keys.items():
        default = "**must be given**"
        if key not in part.get("required", ()):
            default = f"`{_yaml(value['default'])}`" if "default" in value else "nothing"
        if "$ref" in value and default.startswith("`"):
            default = "those of its keys"
        said = " ".join(value["description"].split())
        lines.append(f"| `{key}` | {_values(value)} | {default} | {said} |".replace("  ", " "))
    return "\n".join([*lines, ""])


def _values(value: Mapping[str, Any]) -> str:
    """What a key takes, in words, with its bounds."""
    return " or ".join(dict.fromkeys(_alternatives(value)))


def _alternatives(value: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        yield f"[mapping](#{_TITLES[name]})" if name in _TITLES else "mapping"
    elif "oneOf" in value:
        yield "a kind"
    elif "anyOf" in value:
        named = any("enumDescriptions" in one for one in value["anyOf"])
        for one in value["anyOf"]:
            if not (named and one.get("type") == "string"):  # a name of a plug-in
                yield from _alternatives(one)
    elif "enumDescriptions" in value:
        yield f"[name](#{value['title']})"
    elif "enum" in value or "const" in value:
        for one in value.get("enum", [value.get("const")]):
            yield f"`{one}`"
    elif value.get("type") == "array":
        inner = value.get("items", {})
        yield f"list of {_values(inner)}" if inner else "list"
    elif value.get("type") == "object":
        yield "mapping"
    else:
        yield _WORDS[value["type"]] + _bounds(value)


def _bounds(value: Mapping[str, Any]) -> str:
    """Such as ` from 1 to 64`; bounds that only limit what is used are left out."""
    least, above = value.get("minimum"), value.get("exclusiveMinimum")
    most, below = value.get("maximum"), value.get("exclusiveMaximum")
    most = None if most is not None and most >= LARGEST_NUMBER else most
    below = None if below is not None and below >= LARGEST_NUMBER else below
    if least is not None and most is not None:
        return f" from {least:,} to {most:,}"
    words = {"of at least": least, "above": above, "of at most": most, "below": below}
    said = [f"{word} {bound:,}" for word, bound in words.items() if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _yaml(value: Any) -> str:
    """A default as it would be written."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def main() -> None:
    """Write the page and the schema."""
    if not PAGE.parent.is_dir():
        raise SystemExit(f"there is no {PAGE.parent}: the page belongs to a clone of treespec")
    write_whole(PAGE, reference_page())
    write_whole(SCHEMA, schema_text())
    print(f"written: {PAGE}, {SCHEMA}")


if __name__ == "__main__":
    main()
