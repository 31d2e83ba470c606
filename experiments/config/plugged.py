"""Plug-ins of a command: files given with --plugin, or the copies in the folder that it resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treespec import plugin_files
from treespec.errors import InvalidPlugin, Unreadable
from treespec.experiments.config.file import read_data
from treespec.experiments.config.places import place_of
from treespec.experiments.errors import ConfigError
from treespec.files import DATA_BYTES, parse_json, read_bytes
from treespec.plugin_files import PluginFile, in_use, installed

FOLDER = "plugins"
"""Subfolder of a run or a sweep with the copies of its plug-ins."""


def plug_in(given: Sequence[str | Path], manifest: Path | None = None) -> None:
    """Load plug-ins, installed ones included, so that configs can name their parts.

    If no file is given, the copies of the run or sweep with this manifest are loaded, if there is one.
    """
    files = plugin_files.read(given)
    if not files and manifest is not None:
        files = copies(manifest)
    plugin_files.load(files)


def folder_asked_for(
    source: str, overrides: Sequence[str], out: Path | None, base: str
) -> Path | None:
    """The folder that a command will write, as far as known before plug-ins are loaded.

    None if the config does not give a valid one; loading the config reports why.
    """
    if out is not None:
        return out
    try:
        _, data = read_data(source, overrides)
        return place_of(data.get("output"), str(data.get("name")), base)
    except ConfigError:
        return None


def copies(manifest: Path) -> list[PluginFile]:
    """The plug-ins that a run or sweep was started with, from the copies in its folder."""
    hashes = plugin_copies(manifest)
    files = plugin_files.read(hashes)
    for file in files:
        if file.sha256 != hashes[file.path]:
            raise InvalidPlugin(
                f"plug-in {file.path} has been changed (SHA-256 {file.sha256[:16]}..., but the run was "
                f"started with {hashes[file.path][:16]}...): give the original file with --plugin"
            )
    return files


def plugin_copies(manifest: Path) -> dict[Path, str]:
    """The paths of the copies that a manifest names, with the SHA-256 that it states."""
    try:
        data = parse_json(read_bytes(manifest, DATA_BYTES), constants=True)
        entries = [(str(entry["file"]), str(entry["sha256"])) for entry in data["plugins"]]
    except (Unreadable, TypeError, KeyError):
        return {}  # no manifest, or its reader reports what is wrong
    return {manifest.parent / FOLDER / Path(name).name: digest for name, digest in entries}


def told() -> dict[str, list[dict[str, Any]]]:
    """What a manifest records about the loaded plug-ins: files, and installed packages."""
    return {
        "plugins": [{"file": file.path.name, "sha256": file.sha256} for file in in_use()],
        "installed_plugins": [asdict(plugin) for plugin in installed()],
    }


def require_same_plugins(folder: Path, manifest: Mapping[str, Any], error: type[Exception]) -> None:
    """Refuse to resume a run or sweep with plug-ins that differ from those it was started with."""
    here = told()
    for kind, key in (("plugins", "file"), ("installed_plugins", "module")):
        if kind == "installed_plugins" and manifest.get(kind) is None:
            continue  # an older manifest does not say which were installed
        before = {entry[key]: entry for entry in manifest.get(kind) or ()}
        now = {entry[key]: entry for entry in here[kind]}
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                raise error(
                    f"{folder} was started with another plug-in {name} ({_described(before.get(name))}, "
                    f"now {_described(now.get(name))}): give the original one or none (copies are in "
                    f"{folder / FOLDER}), choose another folder with --out, or start over with --fresh"
                )


def _described(entry: Mapping[str, Any] | None) -> str:
    """A plug-in in words, such as `mine 1.2, SHA-256 0123456789abcdef...`."""
    if entry is None:
        return "none of that name"
    package = [str(entry[key]) for key in ("distribution", "version") if entry.get(key)]
    sha256 = f"SHA-256 {entry['sha256'][:16]}..." if entry["sha256"] else "no file"
    return ", ".join([*([" ".join(package)] if package else []), sha256])
