"""What a manifest must hold to be reported, compared and resumed (SCHEMA.md)."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treespec.experiments.errors import NoFinishedPrompt, RunFolderError
from treespec.experiments.records.rows import require_version
from treespec.reading_models import read_form, with_new_names


class _Named(BaseModel):
    name: str


class _Method(_Named):
    kind: str


class Resumed(BaseModel):
    config: dict[str, Any]
    config_hash: str
    finished: str | None


class Reported(Resumed):
    name: str
    created: str
    seed: int
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    models: dict[str, dict[str, Any]]
    methods: list[_Method]
    samplings: list[_Named]


def checked_manifest(
    path: Path, way_out: str, other: str, form: type[Resumed] = Reported
) -> dict[str, Any]:
    """Read a manifest; keys of its config that have been renamed get their new names."""
    data = read_form(path, RunFolderError, way_out)
    if isinstance(data, dict) and "schema_version" in data:
        require_version(path, data["schema_version"], other)
        if data.get("config_hash", "") is None:
            raise NoFinishedPrompt(
                f"{path.parent} has no finished prompt yet: the run has not begun to decode"
            )
    read_form(path, RunFolderError, f"it is not the manifest of a run; {way_out}", form)
    return data | {"config": with_new_names(data["config"])}
