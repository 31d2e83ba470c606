"""A grid over keys of a config: the Cartesian product of its lists, with a job for each point.

    sweep:
      seed: [0, 1, 2]
      methods[3].shape.depth: [2, 4, 8]

Keys are written like those of overrides on the command line, values in YAML. The first key changes slowest.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from treespec.experiments.config.build import build
from treespec.experiments.config.file import (
    key_parts,
    override,
    parse_override,
    put,
    read_data,
    validated,
)
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import config_hash
from treespec.files import brief
from treespec.reading_models import nearest

MOST_JOBS = 10_000
LONGEST_NAME = 150
"""Characters of a job's name, which is the name of its folder."""


@dataclass(frozen=True)
class Job:
    """One point of a grid.

    Args:
        name: readable, and safe as the name of a folder: `models.dtype=float32,seed=1`.
    """

    name: str
    values: Mapping[str, Any]
    config: Config


@dataclass(frozen=True)
class Grid:
    """A config with a grid.

    Args:
        base: the config without the grid, as written, with overrides applied.
    """

    path: Path
    name: str
    base: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    jobs: tuple[Job, ...]

    @property
    def hash(self) -> str:
        """SHA-256 of the jobs' names and configs."""
        text = json.dumps([[job.name, config_hash(job.config)] for job in self.jobs])
        return hashlib.sha256(text.encode()).hexdigest()


def load_grid(source: str | Path, overrides: Sequence[str] = ()) -> Grid:
    """Read a config with a grid, and check all of its jobs."""
    path, data = read_data(source)
    sweep = data.pop("sweep", None) or {}
    if not isinstance(sweep, dict):
        raise ConfigError(f"{path}: sweep = {brief(sweep)}: must be a mapping of keys to lists")
    axes = {_canonical(str(key)): values for key, values in sweep.items()}
    if len(axes) < len(sweep):
        raise ConfigError(f"{path}: sweep: two of its keys are the same: {brief(list(sweep))}")
    origins = {key: f"{path}: sweep.{key[:80]}" for key in axes}
    for text in overrides:
        key, value = parse_override(text)
        parts = key_parts(key)
        if parts[0] == "sweep" and len(parts) > 1:
            swept = _canonical(".".join(parts[1:]))
            axes[swept] = value
            origins[swept] = f"override {brief(text)}: sweep.{swept[:80]}"
        elif parts[0] == "sweep":
            raise ConfigError(
                f"override {brief(text)}: name a key of the grid, such as sweep.seed=[0,1]"
            )
        else:
            data = override(data, text)
    if not axes:
        raise ConfigError(
            f"{path}: no `sweep:`, so this is a single experiment: use `treespec run {source}`, or give a "
            "grid, such as sweep.seed=[0,1]"
        )
    data, axes = (json.loads(json.dumps(part, default=str)) for part in (data, axes))
    _require_axes(path, axes, origins)
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    configs = _configs(path, data, points, overrides, origins)
    jobs = tuple(map(Job, _names(points), points, configs))
    return Grid(
        path, configs[0].name, data, {key: tuple(values) for key, values in axes.items()}, jobs
    )


def _point_text(values: Mapping[str, Any]) -> str:
    """A point for messages, such as `seed=1, models.dtype=float32`."""
    return ", ".join(f"{key[:80]}={_text(value)[:80]}" for key, value in values.items())


def _canonical(key: str) -> str:
    return ".".join(key_parts(key))


def _require_axes(path: Path, axes: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    for key, values in axes.items():
        origin = origins[key]
        if not key:
            raise ConfigError(f"{path}: sweep: a key is empty; write one such as models.dtype")
        top, known = key.split(".")[0], list(Config.model_fields)
        if top not in known:
            raise ConfigError(
                f"{origin}: unknown key {brief(top, 80)}{nearest(top, known)} (keys: {', '.join(known)})"
            )
        if key in ("name", "output", "sweep"):
            raise ConfigError(
                f"{origin}: cannot be swept; every job has a name and a folder of its own"
            )
        if not isinstance(values, list):
            raise ConfigError(
                f"{origin} = {brief(values)}: must be a list, such as [{_text(values)[:80]}]"
            )
        if not values:
            raise ConfigError(
                f"{origin} = []: an empty list leaves nothing to run; give it a value"
            )
        texts = Counter(json.dumps(value, default=str) for value in values)
        repeated = next((text for text, count in texts.items() if count > 1), None)
        if repeated is not None:
            raise ConfigError(f"{origin}: {repeated[:200]} appears twice")
        parts = key.split(".")
        inner = next((k for k in axes if k != key and k.split(".")[: len(parts)] == parts), None)
        if inner is not None:
            raise ConfigError(f"{path}: sweep: {key} and {inner} overlap: one would undo the other")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_JOBS:
        raise ConfigError(
            f"{path}: sweep: {count:,} jobs, but at most {MOST_JOBS:,} are allowed; shorten a list"
        )


def _configs(
    path: Path,
    data: dict[str, Any],
    points: Sequence[Mapping[str, Any]],
    overrides: Sequence[str],
    origins: Mapping[str, str],
) -> list[Config]:
    configs = []
    for point in points:
        config = {key: value for key, value in data.items() if key != "output"}
        try:
            for key, value in point.items():
                config = put(config, key, value, origins[key])
            configs.append(validated(path, config, overrides))
            build(configs[-1])
        except ConfigError as error:
            begin = "" if str(error).startswith((str(path), "override ")) else f"{path}: "
            raise ConfigError(f"{begin}{error} (in the job {_point_text(point)})") from None
    return configs


def _names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A folder name for each point; names that are too long or not distinct get a hash."""
    plain = [
        ",".join(f"{_safe(key)}={_safe(_text(value))}" for key, value in point.items())
        for point in points
    ]
    counts = Counter(name.lower() for name in plain)  # some file systems ignore case
    names = []
    for name, point in zip(plain, points, strict=True):
        if len(name) > LONGEST_NAME or counts[name.lower()] > 1:
            digest = hashlib.sha256(json.dumps(point, default=str).encode()).hexdigest()[:8]
            name = f"{name[: LONGEST_NAME - 9]}-{digest}"
        names.append(name)
    return names


def _text(value: Any) -> str:
    """A value in short form: JSON without quotes and spaces."""
    if isinstance(value, str):
        return value
    return re.sub(r'[" ]', "", json.dumps(value, default=str))


def _safe(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text, flags=re.ASCII).strip("_") or "_"
