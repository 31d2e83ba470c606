"""What a manifest must hold to be reported, compared and resumed, and the check of it (SCHEMA.md)."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.forms import (
    COUNT,
    DATA,
    NAME,
    NUMBER,
    misfit,
    parsed,
    with_keys,
)
from treespec.experiments.records.rows import require_version
from treespec.reading import in_json
from treespec.renamed_keys import with_new_names
from treespec.tree import TreeShape

__all__ = ["PLUGINS", "checked_manifest"]

_PLUGIN = with_keys({"file": NAME, "sha256": str})
_INSTALLED = with_keys({
    "module": NAME, "sha256": str | None, "distribution": str | None, "version": str | None,
})  # fmt: skip
PLUGINS = {"plugins?": list[_PLUGIN] | None, "installed_plugins?": list[_INSTALLED] | None}
"""The form of the plug-in keys in the manifest of a run or sweep."""


def _of_different_names(entries: list[Any]) -> list[Any]:
    """Refuse two entries of the same name."""
    names = [entry.name for entry in entries]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ValueError(f"the name {in_json(duplicate)} appears twice")
    return entries


_ONE_OR_MORE = Field(min_length=1), AfterValidator(_of_different_names)
_PARENTS = Annotated[
    list[Annotated[int, Field(ge=-1, lt=2**31)]],
    AfterValidator(lambda parents: TreeShape(tuple(parents))),
]
_MODEL = with_keys({"name": str, "parameters": NUMBER, "dtype": str, "architecture": str})
_METHOD = with_keys({
    "name": NAME, "kind": Literal["generate", "plain", "assisted", "tree"],
    "parents?": _PARENTS | None, "size": COUNT | None, "depth": COUNT | None,
    "draft?": DATA | None, "growth?": DATA | None, "files?": DATA | None,
    "state?": str | None, "law?": dict[str, str] | None, "rule?": dict[str, str] | None,
    "settings?": DATA | None, "lossless?": bool,
})  # fmt: skip
_SAMPLING = with_keys({"name": NAME, "temperature?": NUMBER})
_CANDIDATE = {"length": COUNT, "threshold": NUMBER}
_TIMED = with_keys(_CANDIDATE | {"tokens_per_second": NUMBER, "prompts?": COUNT})
_FAILED = with_keys(_CANDIDATE | {"error": Any})
_TUNED = with_keys({
    "table": list[_TIMED], "chosen": with_keys(_CANDIDATE), "totals_because?": str | None,
    "errors?": list[_FAILED] | None,
})  # fmt: skip
_WRITTEN = with_keys({"kind": NAME, "name?": NAME | None, "shape?": DATA})
_CONFIG = with_keys({
    "methods?": list[_WRITTEN], "repeats?": COUNT | None, "search?": DATA | None,
})  # fmt: skip
_SESSION = with_keys({"git_hash?": str | None, "versions?": DATA, "hardware?": DATA})
_LOOK = with_keys({
    "prompts": COUNT, "samples": COUNT, "sampling": NAME, "ratio": NUMBER | None, "low": NUMBER | None,
    "high": NUMBER | None, "boundary": NUMBER | None, "decided": bool,
})  # fmt: skip
_WARMUP = with_keys({"prompts": COUNT, "seconds": NUMBER})
_NOTHING = Annotated[DATA, Field(max_length=0)]
_MANIFEST = {
    "schema_version": COUNT,
    "name": NAME, "folder_id?": str, "config": _CONFIG, "config_hash": str,
    **PLUGINS,
    "metrics?": dict[str, str] | None, "prompt_texts?": list[str] | None,
    "prompts_hash?": str | None, "prompts_revision?": str | None,
    "created": str, "finished": NAME | None, "seed": COUNT,
    "errors?": COUNT,
    "sessions?": list[_SESSION] | None,
    "treespec_version": str | None, "git_hash": str | None,
    "versions": dict[str, str | None],
    "hardware": with_keys({
        "machine": str, "cpu": str, "cores": COUNT | None, "threads": COUNT,
        "memory_gib": NUMBER, "gpu": str | None,
    }),
    "models": with_keys({"target": _MODEL, "draft": _MODEL}),
    "settings?": with_keys({"dtype": str, "why": str, "plain_dtype": str | None, "plain_ratio": NUMBER})
    | None,
    "methods": Annotated[list[_METHOD], *_ONE_OR_MORE],
    "samplings": Annotated[list[_SAMPLING], *_ONE_OR_MORE],
    "tuning?": with_keys({"assisted?": dict[str, dict[str, _TUNED]]}),
    "warmup?": _WARMUP | _NOTHING | None,
    "together?": COUNT, "twins?": dict[str, NAME], "groups?": list[list[NAME]],
    "planned?": with_keys({"prompts": COUNT, "samples": COUNT}), "looks?": list[_LOOK],
    "meters?": with_keys({"sources?": DATA, "unavailable?": dict[str, str] | None}) | None,
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
    forms = {
        key if key in needed else f"{key.removesuffix('?')}?": kind
        for key, kind in _MANIFEST.items()
    }
    if problem := misfit(data, with_keys(forms)):
        raise RunFolderError(
            f"{path} is damaged, or is not the manifest of a run: {problem}; {way_out}"
        )
    return data | {"config": with_new_names(data["config"])} if "config" in data else data
