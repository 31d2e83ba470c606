"""Read a config from YAML, with overrides, and say precisely what is wrong with it."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from treespec.errors import Unreadable
from treespec.experiments.config.base import nearest
from treespec.experiments.config.files import is_file, is_there
from treespec.experiments.config.schema import Config
from treespec.experiments.config.words import plain_words
from treespec.experiments.errors import ConfigError
from treespec.reading import brief, read_text
from treespec.reading_yaml import parse_yaml

__all__ = [
    "key_parts",
    "load_config",
    "override",
    "parse_override",
    "put",
    "read_data",
    "shipped",
    "validated",
]

LARGEST_FILE = 2**20
"""Bytes of a config."""

LONGEST_KEY = 16
"""Parts of a key with dots."""

PROBLEMS_SHOWN = 20


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config in a file, changed by overrides.

    Args:
        source: path of a YAML file, or the name of a config that is shipped (`shipped()`).
        overrides: `key=value` with dotted keys, list indices included, and values in YAML.

    Raises:
        ConfigError: if it cannot be read, is no valid config, or is a grid of several (`sweep:`).
    """
    path, data = read_data(source)
    for text in overrides:
        data = override(data, text)
    if "sweep" in data:
        raise ConfigError(
            f"{path}: `sweep:` makes several experiments of it, and this command takes one: run them all "
            f"with `treespec sweep {source}`, or take `sweep:` out"
        )
    return validated(path, data)


def read_data(source: str | Path) -> tuple[Path, dict[str, Any]]:
    """The mapping in a file, not validated, and the path of the file.

    Raises:
        ConfigError: if there is no such file, or it holds no mapping.
    """
    path = _find(source)
    return path, _parse(path)


def validated(path: Path, data: dict[str, Any]) -> Config:
    """The config that a mapping stands for.

    Args:
        path: of its file, for messages.
        data: a parsed config; not changed.

    Raises:
        ConfigError: with a line for each thing that is wrong.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = {
            _walk(data, problem["loc"])[0]: problem
            for problem in reversed(_causes(error.errors(include_url=False)))
        }
        found = list(reversed(problems.values()))
        lines = [f"{path}: {_explain(data, problem)}" for problem in found[:PROBLEMS_SHOWN]]
        if len(found) > PROBLEMS_SHOWN:
            lines.append(f"{path}: ... and {len(found) - PROBLEMS_SHOWN} more")
        raise ConfigError("\n".join(lines)) from None


def shipped() -> dict[str, Path]:
    """The configs in the package, by name."""
    folder = Path(str(files("treespec.experiments"))) / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def override(data: dict[str, Any], text: str) -> dict[str, Any]:
    """A copy of `data` in which one value is set.

    Args:
        data: a parsed config; not changed.
        text: `models.dtype=float32`, `methods.3.shape.depth=8`, `methods[3].shape.depth=8`.

    Raises:
        ConfigError: if the text is no override or its key leads nowhere.
    """
    key, value = parse_override(text)
    return put(data, key, value, f"override {brief(text)}")


def parse_override(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`, the value as YAML reads it.

    Raises:
        ConfigError: if the text is no override.
    """
    key, equals, value = text.partition("=")
    if not equals or not key_parts(key):
        raise ConfigError(f"override {brief(text)}: write key=value, such as models.dtype=float32")
    try:
        return key.strip(), parse_yaml(value)
    except Unreadable as error:
        raise ConfigError(f"override {brief(text)}: the value is no YAML ({error.said})") from None


def key_parts(key: str) -> list[str]:
    """`methods[3].shape.depth` and `methods.3.shape.depth` as `methods`, `3`, `shape`, `depth`."""
    return [part for part in re.split(r"[.\[\]]+", key.strip()) if part]


def put(data: dict[str, Any], key: str, value: Any, what: str) -> dict[str, Any]:
    """A copy of `data` in which the value at a dotted key is set.

    Args:
        data: a parsed config; not changed.
        key: dotted, list indices included.
        value: plain data.
        what: what asks for it, for messages.

    Raises:
        ConfigError: if the key leads nowhere.
    """
    parts = key_parts(key)
    if len(parts) > LONGEST_KEY:
        raise ConfigError(
            f"{what}: a key of {len(parts)} parts, but none has more than {LONGEST_KEY}"
        )
    changed = json.loads(json.dumps(data, default=str))
    place, walked = changed, ""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if isinstance(place, list):
            if not re.fullmatch("[0-9]{1,9}", part) or int(part) >= len(place):
                raise ConfigError(
                    f"{what}: {walked or 'it'} is a list of {len(place)}; "
                    f"{brief(part, 60)} is no index in 0..{len(place) - 1}"
                )
            index: Any = int(part)
        elif isinstance(place, dict):
            index = part
        else:
            raise ConfigError(
                f"{what}: {walked} is {brief(place)} and has no key {brief(part, 60)}"
            )
        walked = _join(walked, index)
        if last:
            place[index] = value
        elif isinstance(place, dict) and place.get(index) is None:
            place[index] = {}
        place = place[index]
    return changed


def _find(source: str | Path) -> Path:
    path = Path(source)
    if is_file(str(source)):
        return path
    known = shipped()
    if str(source) in known:
        return known[str(source)]
    if is_there(str(source)) and path.is_dir():
        raise ConfigError(f"{path} is a folder; give a YAML file or one of: {', '.join(known)}")
    hint = nearest(str(source)[:80], list(known))
    if is_there(str(source)):  # a device, a pipe
        _text(path)
    raise ConfigError(f"no config file {brief(str(source))}{hint} (shipped: {', '.join(known)})")


def _parse(path: Path) -> dict[str, Any]:
    try:
        data = parse_yaml(_text(path))
    except Unreadable as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, not {_kind(data)}")
    return data


def _text(path: Path) -> str:
    try:
        return read_text(path, LARGEST_FILE)
    except Unreadable as error:
        raise ConfigError(str(error)) from None


def _kind(data: Any) -> str:
    """What a file holds instead of a mapping."""
    return "nothing" if data is None else "a list" if isinstance(data, list) else brief(data, 60)


def _causes(problems: Sequence[Any]) -> list[Any]:
    """Leave out that a list is too short because its items are wrong."""
    places = [problem["loc"] for problem in problems]

    def follows(problem: Any) -> bool:
        loc = problem["loc"]
        inside = any(len(other) > len(loc) and other[: len(loc)] == loc for other in places)
        return problem["type"] == "too_short" and inside

    return [problem for problem in problems if not follows(problem)]


def _explain(data: Any, problem: Any) -> str:
    """One problem that pydantic found, as `path: what is wrong, what is allowed`."""
    path, value = _walk(data, problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "unknown_key":
        return f"{_join(path, context['key'])}: {problem['msg']}"
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        hint = nearest(context["tag"][:80], tags)
        unknown = f"unknown kind {brief(context['tag'], 60)}{hint}"
        return f"{_join(path, 'kind')}: {unknown} (kinds: {', '.join(tags)})"
    if kind == "union_tag_not_found":
        return f"{path}: a mapping with a 'kind' is needed, not {brief(value)}"
    if kind == "missing":
        return f"{_join(path, problem['loc'][-1])} is missing"
    return f"{path or 'the config'} = {brief(value)}: {plain_words(problem['msg'])}"


def _walk(data: Any, loc: Sequence[int | str]) -> tuple[str, Any]:
    """Follow a pydantic location, in which the kinds of unions stand between the keys."""
    path, tagged = "", False
    for part in loc:
        tag = isinstance(data, dict) and not tagged and data.get("kind") == part
        inside = isinstance(data, dict | list) and part in (
            data if isinstance(data, dict) else range(len(data))
        )
        if inside and not tag:
            data, path = data[part], _join(path, part)
        tagged = tag
    return path, data


def _join(path: str, part: int | str) -> str:
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part
