"""Where a run or a sweep may go: no config leads out of `runs/`, and no folder holds what is read."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from treespec.experiments.config.schema import Config
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.errors import ConfigError

__all__ = ["inputs_of", "place_of", "require_apart"]

LONGEST_NAME = 200
"""Bytes of a folder's name: file systems allow 255, and files written beside it have longer names."""

INPUTS = (
    *("target", "draft", "model", "path", "rates", "acceptance", "latency", "calibration"),
    *("warm", "datastore", "file", "files"),
)
"""Keys of a config that may name files and folders."""


def place_of(output: object, name: str, base: str) -> Path:
    """The folder that a config asks for: `output`, or `<base>/<name>`.

    Args:
        output: of the config, which a grid does not check before; null for none.
        name: of the config.
        base: the folder, in the current one, that it must be in.

    Raises:
        ConfigError: if it is elsewhere, by `..`, as an absolute path or through a link.
    """
    way = f"give a folder in {base}/, or any with --out"
    if output is None:
        if name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise ConfigError(
                f"name = {name!r} cannot be the name of a folder in {base}/: take its slashes and dots "
                "out, or name a folder with --out"
            )
        if len(os.fsencode(name)) > LONGEST_NAME:
            raise ConfigError(
                f"name = {name[:40]!r}...: {len(os.fsencode(name))} bytes are more than the {LONGEST_NAME} "
                "of a folder's name; shorten it, or name a folder with --out"
            )
        path, what = Path(base) / name, f"name = {name!r}"
    else:
        what = f"output = {output!r}"
        if not isinstance(output, str) or "\0" in output:
            raise ConfigError(f"{what} is no path; {way}")
        path, straight = Path(output), Path(os.path.normpath(output)).parts
        if straight[:1] != (base,) or len(straight) == 1:
            raise ConfigError(f"{what} is not in {base}/: {way}")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise ConfigError(
            f"{what}: a link leads it out of {base}/, to {os.path.realpath(path)}; {way}"
        )
    return path


def inputs_of(config: Config) -> Iterator[tuple[str, Path]]:
    """Files and folders that are there and that a config reads, each with the key that names it."""
    yield from _named(config.model_dump(mode="json"), "")


def require_apart(folder: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse a folder that is, or holds, something that is read.

    Args:
        folder: that is written, and perhaps cleared.
        inputs: what is read, with words for it.

    Raises:
        ConfigError: naming both.
    """
    for what, path in inputs:
        for place in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
            if any(_same(part, folder) for part in (place, *place.parents)):
                verb = "is" if _same(place, folder) else "holds"
                raise ConfigError(
                    f"{folder} {verb} {path}, which is read ({what}): give another folder with --out, or "
                    "move it"
                )


def _same(path: Path, folder: Path) -> bool:
    if path == folder or os.path.realpath(path) == os.path.realpath(folder):
        return True
    try:
        return os.path.samefile(path, folder)
    except OSError:
        return False


def _named(data: Any, where: str) -> Iterator[tuple[str, Path]]:
    if isinstance(data, dict):
        for key, value in data.items():
            inner = f"{where}.{key}" if where else key
            if key in INPUTS and isinstance(value, str) and value != MEASURED and _there(value):
                yield inner, Path(value)
            elif key in INPUTS and isinstance(value, list):
                names = [name for name in value if isinstance(name, str) and _there(name)]
                yield from ((inner, Path(name)) for name in names)
            yield from _named(value, inner)
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _named(value, f"{where}[{i}]")


def _there(text: str) -> bool:
    try:
        return os.path.lexists(text)
    except ValueError:  # with a zero byte in it
        return False
