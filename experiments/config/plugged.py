"""Plug-ins of a command: files that are named, or the copies in the folder that it goes on with."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treespec import plugin_files
from treespec.errors import InvalidPlugin, Unreadable
from treespec.experiments.config import trees as _ours  # noqa: F401  (registers our growths)
from treespec.experiments.config.file import override, read_data
from treespec.experiments.config.places import place_of
from treespec.experiments.errors import ConfigError
from treespec.plugin_files import PluginFile, in_use, installed
from treespec.reading import parse_json, read_bytes

__all__ = ["FOLDER", "copies", "folder_asked_for", "plug_in", "require_same_plugins", "told"]

FOLDER = "plugins"
"""In the folder of a run or a sweep: the copies of its plug-ins."""


def plug_in(given: Sequence[str | Path], manifest: Path | None = None) -> None:
    """Load plug-ins, installed ones too. Configs can name their parts from now on.

    Args:
        given: Python files.
        manifest: of a run or sweep that may go on; its own copies are loaded if no file is given.

    Raises:
        InvalidPlugin: naming the file and what is wrong with it.
    """
    files = plugin_files.read(given)
    if not files and manifest is not None:
        files = copies(manifest)
    plugin_files.load(files)


def folder_asked_for(
    source: str, overrides: Sequence[str], out: Path | None, base: str
) -> Path | None:
    """The folder that a command will write, as far as it is known before the config can be read.

    Args:
        source: the config.
        overrides: of it.
        out: a folder that is named instead.
        base: `runs` or `sweeps`.

    Returns:
        None if the config says none that is right; reading it says why.
    """
    if out is not None:
        return out
    try:
        _, data = read_data(source)
        for text in overrides:
            data = override(data, text)
        return place_of(data.get("output"), str(data.get("name")), base)
    except ConfigError:
        return None


def copies(manifest: Path) -> list[PluginFile]:
    """The plug-ins that a run or sweep was started with, from the copies in its folder.

    Args:
        manifest: of it.

    Raises:
        InvalidPlugin: if a copy is missing, or was changed since.
    """
    try:
        data = parse_json(read_bytes(manifest, 2**28), constants=True)
        named = {str(entry["file"]): str(entry["sha256"]) for entry in data.get("plugins") or ()}
    except (Unreadable, AttributeError, TypeError, KeyError):
        return []  # there is none, or who reads it says what is wrong
    files = plugin_files.read(manifest.parent / FOLDER / Path(name).name for name in named)
    for file in files:
        if file.sha256 != named[file.path.name]:
            raise InvalidPlugin(
                f"plug-in {file.path} was changed since (SHA-256 {file.sha256[:16]}..., but the run was "
                f"started with {named[file.path.name][:16]}...): name the one of then with --plugin"
            )
    return files


def told() -> dict[str, list[dict[str, Any]]]:
    """What a manifest says of the plug-ins that are loaded: files, and installed ones."""
    files = [{"file": file.path.name, "sha256": file.sha256} for file in in_use()]
    return {"plugins": files, "installed_plugins": [asdict(plugin) for plugin in installed()]}


def require_same_plugins(folder: Path, manifest: Mapping[str, Any], error: type[Exception]) -> None:
    """Refuse to go on with other plug-ins than a run or sweep was started with.

    Args:
        folder: of it.
        manifest: of it; an older one does not say which plug-ins were installed.
        error: what is raised.
    """
    if manifest.get("installed_plugins") is not None:
        _require_same_installed(folder, manifest["installed_plugins"], error)
    before = {entry["file"]: entry["sha256"] for entry in manifest.get("plugins") or ()}
    now = {file.path.name: file.sha256 for file in in_use()}
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            hashes = [side.get(name) for side in (before, now)]
            was, is_now = (f"SHA-256 {h[:16]}..." if h else "none of that name" for h in hashes)
            raise error(
                f"{folder} was started with another plug-in {name} ({was}, now {is_now}): name the one of "
                f"then, or none (its copy is in {folder / FOLDER}), give another folder with --out, or "
                "start over with --fresh"
            )


def _require_same_installed(
    folder: Path, told_then: Sequence[Mapping[str, Any]], error: type[Exception]
) -> None:
    before = {entry["module"]: entry for entry in told_then}
    now = {entry["module"]: entry for entry in told()["installed_plugins"]}
    for module in dict.fromkeys([*before, *now]):
        then, here = before.get(module), now.get(module)
        if then != here:
            raise error(
                f"{folder} was started with {_installed(then)} as the installed plug-in {module}, but now "
                f"there is {_installed(here)}: install what was there then, give another folder with "
                "--out, or start over with --fresh"
            )


def _installed(entry: Mapping[str, Any] | None) -> str:
    """Such as `mine 1.2 (SHA-256 0123456789abcdef...)`."""
    if entry is None:
        return "none"
    package = " ".join(str(entry[key]) for key in ("distribution", "version") if entry[key])
    sha256 = entry["sha256"]
    return f"{package or 'a package'} ({f'SHA-256 {sha256[:16]}...' if sha256 else 'no file'})"
