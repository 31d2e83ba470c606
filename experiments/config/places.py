"""Check output folders: a config writes only inside `runs/` or `sweeps/`, never over its inputs."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from treespec.experiments.config.base import LONGEST_FILE_NAME
from treespec.experiments.config.schema import Config
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.errors import ConfigError

__all__ = ["inputs_of", "place_of", "require_apart", "texts_in"]

INPUTS = (
    *("target", "draft", "model", "path", "rates", "acceptance", "latency", "calibration"),
    *("warm", "datastore", "file", "files"),
)
"""Keys of a config that may name files and folders."""


def place_of(output: object, name: str, base: str) -> Path:
    """The output folder of a config: `output`, or `<base>/<name>`.

    Args:
        output: of the config, possibly not validated yet (in a grid); None if absent.
        name: of the config.
        base: folder in the current directory that must contain the output.

    Raises:
        ConfigError: if the folder is outside `base`: through `..`, an absolute path or a link.
    """
    way_out = f"give a folder in {base}/, or any folder with --out"
    if output is None:
        if name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise ConfigError(
                f"name = {name!r} cannot be the name of a folder in {base}/: remove its slashes and dots, "
                "or name a folder with --out"
            )
        if len(os.fsencode(name)) > LONGEST_FILE_NAME:
            raise ConfigError(
                f"name = {name[:40]!r}...: {len(os.fsencode(name))} bytes, but a folder's name may have at "
                f"most {LONGEST_FILE_NAME}; shorten it, or name a folder with --out"
            )
        path, what = Path(base) / name, f"name = {name!r}"
    else:
        what = f"output = {output!r}"
        if not isinstance(output, str) or "\0" in output:
            raise ConfigError(f"{what} is not a path; {way_out}")
        path, parts = Path(output), Path(os.path.normpath(output)).parts
        if parts[:1] != (base,) or len(parts) == 1:
            raise ConfigError(f"{what} is not in {base}/: {way_out}")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base)):
        raise ConfigError(
            f"{what}: a link leads out of {base}/, to {os.path.realpath(path)}; {way_out}"
        )
    return path


def inputs_of(config: Config) -> Iterator[tuple[str, Path]]:
    """The existing files and folders that a config reads, each with the key that names it."""
    for path, key, text in texts_in(config.model_dump(mode="json")):
        if key in INPUTS and text != MEASURED and os.path.lexists(text):
            yield f"{path.rpartition(key)[0]}{key}", Path(text)  # without an index in a list


def texts_in(data: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text in plain data: the path to it, the key that holds it or its list, and the text."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from texts_in(value, f"{path}.{name}" if path else name, name)
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from texts_in(value, f"{path}[{i}]", key)
    elif isinstance(data, str):
        yield path, key, data


def require_apart(folder: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Reject an output folder that is, or contains, an input.

    Args:
        folder: the folder to write, and perhaps to clear.
        inputs: files and folders to read, each after words for it.

    Raises:
        ConfigError: naming the folder and the input.
    """
    for what, path in inputs:
        for absolute in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
            if any(_same(ancestor, folder) for ancestor in (absolute, *absolute.parents)):
                verb = "is" if _same(absolute, folder) else "contains"
                raise ConfigError(
                    f"{folder} {verb} {path}, which is an input ({what}): choose another folder with "
                    "--out, or move the input"
                )


def _same(path: Path, folder: Path) -> bool:
    if path == folder or os.path.realpath(path) == os.path.realpath(folder):
        return True
    try:
        return os.path.samefile(path, folder)
    except OSError:
        return False
