"""Read a config from YAML, apply overrides, and report precisely what is wrong with it.

Also write the first config, from which users start (`treespec init`).
"""

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from treespec.errors import Unreadable, in_words
from treespec.experiments.config.files import config_text, require_new, write_new
from treespec.experiments.errors import ConfigError
from treespec.files import brief, parse_yaml
from treespec.reading_models import joined, problems

if TYPE_CHECKING:
    from treespec.experiments.config.schema import Config

FIRST = Path(__file__).with_name("first.yaml")
"""What `treespec init` writes: a config that is small, commented, and ready to run."""


def load_config(source: str | Path, overrides: Sequence[str] = ()) -> "Config":
    """Read a config and apply overrides.

    Args:
        source: path of a YAML file, or the name of a shipped config (`shipped()`).
        overrides: `key=value` with dotted keys, list indices included, and values in YAML.

    Raises:
        ConfigError: if the file cannot be read, is not a valid config, or holds a grid (`sweep:`).
    """
    path, data = read_data(source, overrides)
    if "sweep" in data:
        raise ConfigError(
            f"{path}: `sweep:` defines several experiments, but this command takes one: run them all "
            f"with `treespec sweep {source}`, or remove `sweep:`"
        )
    return validated(path, data, overrides)


def read_data(source: str | Path, overrides: Sequence[str] = ()) -> tuple[Path, dict[str, Any]]:
    """The path of a config's file, and the mapping in it with overrides applied, not validated."""
    path, text = config_text(source)
    try:
        data = parse_yaml(text)
    except Unreadable as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, not {_kind(data)}")
    for change in overrides:
        data = override(data, change)
    return path, data


def validated(path: Path, data: dict[str, Any], overrides: Sequence[str] = ()) -> "Config":
    """Validate a parsed config.

    Raises:
        ConfigError: with a line for each problem.
    """
    from treespec.experiments.config.generation import taken_over
    from treespec.experiments.config.schema import Config, refresh  # slow: torch and all parts

    refresh()
    data = taken_over(path, data)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(
                f"{_origin(path, overrides, line)}: {line}{_shape_examples(data, line)}"
                for line in problems(data, error, "the config")
            )
        ) from None
    except Exception as error:  # of a plug-in's own validator
        raise ConfigError(f"{path}: {in_words(error, 'the check of a setting')}") from error


def _origin(path: Path, overrides: Sequence[str], problem: str) -> str:
    """Where a problem comes from: the last override that set the value or a part of it; else the file."""
    match = re.match(r"[^\s:=]*", problem)
    parts = key_parts("" if match is None else match[0])
    for text in reversed(overrides):
        key = key_parts(text.partition("=")[0])
        unknown = ": unknown key" in problem and key[: len(parts)] == parts
        if unknown or parts[: len(key)] == key:
            return f"override {brief(text)}"
        if parts and key[: len(parts)] == parts:
            return f"{path} with override {brief(text)}"
    return str(path)


def _shape_examples(data: dict[str, Any], problem: str) -> str:
    """Appended to a problem with a shape: how shapes of its kind are written."""
    match = re.match(r"methods\[(\d+)\]\.shape\b", problem)
    if match is None:
        return ""
    from treespec.experiments.config.spellings import examples_near

    return f"; write {examples_near(data['methods'][int(match[1])].get('shape'))}"


def first_config(file: Path) -> str:
    """The text of the config for this file; the experiment is named after the file."""
    name = yaml.safe_dump(file.stem, allow_unicode=True).removesuffix("...\n").strip()
    return FIRST.read_text(encoding="utf-8").format(name=name, file=shlex.quote(str(file)))


def write_first(file: Path) -> None:
    require_new(file, option="")
    text = first_config(file)
    validated(file, parse_yaml(text))
    write_new(file, text)


def override(data: dict[str, Any], text: str) -> dict[str, Any]:
    return put(data, *parse_override(text), f"override {brief(text)}")


def parse_override(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`, the value parsed as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key_parts(key):
        raise ConfigError(f"override {brief(text)}: write key=value, such as models.dtype=float32")
    try:
        return key.strip(), parse_yaml(value)
    except Unreadable as error:
        raise ConfigError(f"override {brief(text)}: the value is not YAML ({error.said})") from None


def key_parts(key: str) -> list[str]:
    """Split `methods[3].shape.depth` or `methods.3.shape.depth` into `methods`, `3`, `shape`, `depth`."""
    return [part for part in re.split(r"[.\[\]]+", key.strip()) if part]


def put(data: dict[str, Any], key: str, value: Any, what: str) -> dict[str, Any]:
    """A copy of `data` with the value at a dotted key set."""
    parts = key_parts(key)
    changed = json.loads(json.dumps(data, default=str))
    place, walked = changed, ""
    for i, part in enumerate(parts):
        if isinstance(place, list):
            if not re.fullmatch("[0-9]{1,9}", part) or int(part) >= len(place):
                raise ConfigError(
                    f"{what}: {walked or 'it'} is a list of {len(place)}; "
                    f"{brief(part, 60)} is not an index in 0..{len(place) - 1}"
                )
            index: Any = int(part)
        elif isinstance(place, dict):
            index = part
        else:
            raise ConfigError(
                f"{what}: {walked} is {brief(place)} and has no key {brief(part, 60)}"
            )
        walked = joined(walked, index)
        if i == len(parts) - 1:
            place[index] = value
        elif isinstance(place, dict) and place.get(index) is None:
            place[index] = {}
        elif index == "shape" and isinstance(place[index], str):
            from treespec.experiments.config.spellings import spelled

            with suppress(ValueError):  # a text that is not a spelling is rejected below
                place[index] = spelled(place[index])
        place = place[index]
    return changed


def _kind(data: Any) -> str:
    return "nothing" if data is None else "a list" if isinstance(data, list) else brief(data, 60)
