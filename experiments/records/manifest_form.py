"""What a manifest must hold to be reported, compared and resumed, and the check of it (SCHEMA.md)."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from treespec.errors import InvalidTree
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.forms import (
    ANY,
    COUNT,
    DATA,
    NAME,
    NUMBER,
    TEXT,
    TRUTH,
    Kind,
    by_name,
    each,
    fits,
    or_null,
    parsed,
)
from treespec.experiments.records.rows import require_version
from treespec.reading import in_json
from treespec.renamed_keys import with_new_names
from treespec.tree import TreeShape

__all__ = ["KINDS", "PLUGINS", "checked_manifest"]

KINDS = ("generate", "plain", "assisted", "tree")
"""The kinds of methods."""

PLUGINS = {
    "plugins?": or_null(each({"file": NAME, "sha256": TEXT})),
    "installed_plugins?": or_null(each({
        "module": NAME, "sha256": or_null(TEXT), "distribution": or_null(TEXT), "version": or_null(TEXT),
    })),
}  # fmt: skip
"""The form of the plug-in keys in the manifest of a run or sweep."""

_PARENT = Kind("an integer of at least -1", lambda v: type(v) is int and -1 <= v < 2**31)
_KIND = Kind(f"one of {', '.join(KINDS)}", lambda value: value in KINDS)
_WARMUP = Kind(
    "an object with prompts and seconds",
    lambda value: value == {} or fits(value, {"prompts": COUNT, "seconds": NUMBER}) is None,
)
_MODEL = {"name": TEXT, "parameters": NUMBER, "dtype": TEXT, "architecture": TEXT}
_METHOD = {
    "name": NAME, "kind": _KIND, "parents?": or_null(each(_PARENT)), "size": or_null(COUNT),
    "depth": or_null(COUNT), "draft?": or_null(DATA), "growth?": or_null(DATA), "files?": or_null(DATA),
    "law?": or_null(by_name(TEXT)), "rule?": or_null(by_name(TEXT)), "settings?": or_null(DATA),
    "lossless?": TRUTH,
}  # fmt: skip
_CANDIDATE = {"length": COUNT, "threshold": NUMBER}
_TUNED = {
    "table": each(_CANDIDATE | {"tokens_per_second": NUMBER, "prompts?": COUNT}),
    "chosen": _CANDIDATE,
    "totals_because?": or_null(TEXT),
    "errors?": or_null(each(_CANDIDATE | {"error": ANY})),
}
_CONFIG = {
    "methods?": each({"kind": NAME, "name?": or_null(NAME), "shape?": DATA}),
    "repeats?": or_null(COUNT),
    "search?": or_null(DATA),
}
_LOOK = {
    "prompts": COUNT,
    "samples": COUNT,
    "sampling": NAME,
    "ratio": or_null(NUMBER),
    "low": or_null(NUMBER),
    "high": or_null(NUMBER),
    "boundary": or_null(NUMBER),
    "decided": TRUTH,
}
_MANIFEST = {
    "schema_version": COUNT,
    "name": NAME, "folder_id?": TEXT, "config": _CONFIG, "config_hash": TEXT,
    **PLUGINS,
    "metrics?": or_null(by_name(TEXT)), "prompt_texts?": or_null(each(TEXT)),
    "prompts_hash?": or_null(TEXT), "prompts_revision?": or_null(TEXT),
    "created": TEXT, "finished": or_null(NAME), "seed": COUNT,
    "errors?": COUNT,
    "sessions?": or_null(each({"git_hash?": or_null(TEXT), "versions?": DATA, "hardware?": DATA})),
    "treespec_version": or_null(TEXT), "git_hash": or_null(TEXT),
    "versions": by_name(or_null(TEXT)),
    "hardware": {
        "machine": TEXT, "cpu": TEXT, "cores": or_null(COUNT), "threads": COUNT,
        "memory_gib": NUMBER, "gpu": or_null(TEXT),
    },
    "models": {"target": _MODEL, "draft": _MODEL},
    "methods": each(_METHOD),
    "samplings": each({"name": NAME, "temperature?": NUMBER}),
    "tuning?": {"assisted?": by_name(by_name(_TUNED))},
    "warmup?": or_null(_WARMUP),
    "together?": COUNT, "twins?": by_name(NAME), "groups?": each(each(NAME)),
    "planned?": {"prompts": COUNT, "samples": COUNT}, "looks?": each(_LOOK),
    "meters?": or_null({"sources?": DATA, "unavailable?": or_null(by_name(TEXT))}),
}  # fmt: skip


def checked_manifest(
    path: Path, way_out: str, other: str, needed: Collection[str] = tuple(_MANIFEST)
) -> dict[str, Any]:
    """Read a manifest, and check that it holds everything that is read from manifests.

    Keys of its config that have been renamed get their new names.

    Args:
        path: the manifest's file.
        way_out: what the user can do about a damaged manifest, for messages.
        other: what the user can do about a manifest of another schema version.
        needed: keys that must be present; by default all that reports read.

    Raises:
        RunFolderError: if the manifest is damaged or has another schema version; names the file, the key
            and its value, or the versions.
    """
    data = parsed(path, RunFolderError, way_out)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is int:
        require_version(path, version, other)
    form = {
        key if key in needed else f"{key.removesuffix('?')}?": kind
        for key, kind in _MANIFEST.items()
    }
    problem = fits(data, form) or _inconsistent(data)
    if problem:
        raise RunFolderError(
            f"{path} is damaged, or is not the manifest of a run: {problem}; {way_out}"
        )
    return data | {"config": with_new_names(data["config"])} if "config" in data else data


def _inconsistent(manifest: dict[str, Any]) -> str | None:
    """What is inconsistent in a manifest whose values are valid individually; None if nothing is."""
    for key in ("methods", "samplings"):
        names = [entry["name"] for entry in manifest.get(key, ())]
        if not names and key in manifest:
            return f"{key} = [], but must hold at least one"
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            return f"{key}: the name {in_json(duplicate)} appears twice"
    for i, method in enumerate(manifest.get("methods", ())):
        if method.get("parents") is not None:
            try:
                TreeShape(tuple(method["parents"]))
            except InvalidTree as error:
                return f"methods[{i}].parents: {error}"
    return None
