"""Check output folders: a config writes only inside `runs/` or `sweeps/`, never over its inputs."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from treespec.experiments.errors import ConfigError

if TYPE_CHECKING:
    from treespec.experiments.config.schema import Config

INPUTS = (
    *("target", "draft", "model", "path", "rates", "acceptance", "latency", "calibration"),
    *("warm", "datastore", "file", "files", "texts"),
)
"""Keys of a config that may name files and folders."""

MODELS = ("target", "draft", "model", "--target", "--draft", "--pair", "--model")
"""Those that name a model, and options that do: a folder, or a hub id."""


def place_of(output: object, name: str, base: str) -> Path:
    """The output folder of a config: `output`, or `<base>/<name>`.

    Args:
        output: of the config, possibly not validated yet (in a grid); None if absent.
        name: of the config.
        base: folder in the current directory that must contain the output.

    Raises:
        ConfigError: if the folder is outside `base`: through `..`, an absolute path or a link.
    """
    what = f"name = {name!r}" if output is None else f"output = {output!r}"
    path = Path(base, name) if output is None else Path(str(output))
    nested = output is None and len(Path(name).parts) != 1
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base))
    if nested or not inside or os.path.realpath(path) == os.path.realpath(base):
        raise ConfigError(
            f"{what} is not in {base}/: give a folder in it, or any folder with --out"
        )
    return path


def inputs_of(config: "Config") -> Iterator[tuple[str, Path]]:
    """The existing files and folders that a config reads, each with the key that names it."""
    from treespec.search.growth.keys import MEASURED

    for path, key, text in texts_in(config.model_dump(mode="json")):
        if key in INPUTS and text != MEASURED and os.path.lexists(text):
            yield f"{path.rpartition(key)[0]}{key}", Path(text)  # without an index in a list


def require_inputs(
    data: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Refuse paths of models and prompts that lead nowhere, before anything slow is imported or loaded.

    A model's name is a path if it cannot be a hub id.

    Args:
        data: a config as it is read, not validated, with its overrides.
        before: the config without them; its paths are checked later, after its keys.
    """
    known = set(texts_in(before))
    for path, key, text in texts_in(data):
        if (path, key, text) in known:
            continue
        is_path = text.startswith((".", "/", "~")) or text.count("/") > 1
        if key in MODELS and is_path and not os.path.exists(os.path.expanduser(text)):
            raise ConfigError(
                f"{path}: there is no model folder {text!r} (searched from {os.getcwd()!r}): check the "
                "path, or give the id of a model on the Hugging Face hub"
            )
        of_file = path == "prompts.path" and data["prompts"].get("kind") != "hf_dataset"
        if of_file and not os.path.lexists(text):
            raise ConfigError(f"prompts.path = {text}: No such file or directory")


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
    """Reject an output folder that is, or contains, an input, which `--fresh` might delete."""
    place = os.path.realpath(folder)
    for what, path in inputs:
        for absolute in (Path(os.path.abspath(path)), Path(os.path.realpath(path))):
            if any(os.path.realpath(above) == place for above in (absolute, *absolute.parents)):
                verb = "is" if os.path.realpath(absolute) == place else "contains"
                raise ConfigError(
                    f"{folder} {verb} {path}, which is an input ({what}): choose another folder with "
                    "--out, or move the input"
                )
