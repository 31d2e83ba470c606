"""Read a config from YAML, with overrides, and say precisely what is wrong with it."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from treespec.errors import Unreadable
from treespec.experiments.config.files import is_file, is_there
from treespec.experiments.config.schema import Config, refresh
from treespec.experiments.config.spellings import examples_near, spelled
from treespec.experiments.errors import ConfigError
from treespec.reading import brief, read_text
from treespec.reading_models import joined, nearest, problems
from treespec.reading_yaml import NotYaml, parse_yaml

__all__ = [
    "config_text",
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
    return validated(path, data, overrides)


def config_text(source: str | Path) -> tuple[Path, str]:
    """The path of a config's file, and what stands in it.

    Raises:
        ConfigError: if there is no such file, or it cannot be read as text.
    """
    path = _find(source)
    return path, _text(path)


def read_data(source: str | Path) -> tuple[Path, dict[str, Any]]:
    """The mapping in a file, not validated, and the path of the file.

    Raises:
        ConfigError: if there is no such file, or it holds no mapping.
    """
    path = _find(source)
    return path, _parse(path)


def validated(path: Path, data: dict[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The config that a mapping stands for.

    Args:
        path: of its file, for messages.
        data: a parsed config; not changed.
        overrides: that it was changed by, which are named where they are wrong.

    Raises:
        ConfigError: with a line for each thing that is wrong.
    """
    refresh()
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = problems(data, error, "the config")
        raise ConfigError(
            "\n".join(
                f"{_whose(path, overrides, line)}: {line}{_such_as(data, line)}" for line in lines
            )
        ) from None


def _whose(path: Path, overrides: Sequence[str], problem: str) -> str:
    """What a problem is blamed on: the last override that set the value, or a part of it; else the file."""
    place = re.match(r"[^\s:=]*", problem)
    parts = key_parts("" if place is None else place[0])
    for text in reversed(overrides):
        key = key_parts(text.partition("=")[0])
        unknown = ": unknown key" in problem and key[: len(parts)] == parts
        if unknown or parts[: len(key)] == key:
            return f"override {brief(text)}"
        if parts and key[: len(parts)] == parts:
            return f"{path} with override {brief(text)}"
    return str(path)


def _such_as(data: dict[str, Any], problem: str) -> str:
    """After a problem of a shape: how shapes of its kind are written."""
    match = re.match(r"methods\[(\d+)\]\.shape\b", problem)
    if match is None:
        return ""
    return f"; write {examples_near(data['methods'][int(match[1])].get('shape'))}"


def shipped() -> dict[str, Path]:
    """The configs in the package, by name."""
    folder = Path(str(files("treespec.experiments"))) / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def override(data: dict[str, Any], text: str) -> dict[str, Any]:
    """A copy of `data` in which one value is set.

    Args:
        data: a parsed config; not changed.
        text: `models.dtype=float32`, `methods.3.shape.depth=8`, `methods[3].shape=chain:8`.

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
    except NotYaml as error:
        raise ConfigError(f"override {brief(text)}: the value is no YAML ({error.said})") from None
    except Unreadable as error:
        raise ConfigError(f"override {brief(text)}: {error.said}") from None


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
        walked = joined(walked, index)
        if last:
            place[index] = value
        elif isinstance(place, dict) and place.get(index) is None:
            place[index] = {}
        elif index == "shape" and isinstance(place[index], str):
            with suppress(ValueError):  # what is no spelling is refused below
                place[index] = spelled(place[index])
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
    except NotYaml as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    except Unreadable as error:
        raise ConfigError(f"{path}: {error}") from None
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
