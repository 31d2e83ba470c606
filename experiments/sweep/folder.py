"""The folder of a sweep: its manifest, its jobs' folders, and who may write it.

sweep.json               grid, base config, jobs, versions; replaced atomically
jobs/<name>/config.yaml  an ordinary config
jobs/<name>/run/         an ordinary run folder: `treespec report` works on it
jobs/<name>/attempts/    how each attempt at the job ended
logs/                    what workers printed
prompts.parquet, summary.parquet, summary.json   the collected result
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.changes import differences
from experiments.forms import ANY, DATA, NAME, TEXT, Kind, by_name, each, fits, or_null
from experiments.held_folder import HeldFolder
from experiments.manifest import config_data, config_hash, now
from experiments.sweep.attempts import read_json, write_json
from experiments.sweep.errors import SweepError, VersionsDiffer
from experiments.sweep.grid import Grid
from experiments.sweep.versions import different_versions, versions_here

__all__ = ["SWEEP_VERSION", "SweepFolder", "read_manifest"]

SWEEP_VERSION = 1
"""Of the layout and of `sweep.json`."""

_OURS = ("jobs", "logs", "prompts.parquet", "summary.parquet", "summary.json")
_FORM = {
    "schema_version": Kind(str(SWEEP_VERSION), lambda value: value is SWEEP_VERSION), "name?": TEXT,
    "grid": by_name(each(ANY)), "base": DATA, "grid_hash": TEXT,
    "jobs": each({"name": NAME, "values": DATA, "config_hash": TEXT}), "versions": DATA,
    "finished": or_null(TEXT), "sessions?": each(DATA),
}  # fmt: skip


class SweepFolder(HeldFolder):
    """A sweep's folder, held by one process at a time (`with SweepFolder(path) as folder:`).

    Args:
        path: made if it does not exist.

    Raises:
        SweepError: on entering, if the path is no folder of a sweep, or another process holds it.
    """

    error = SweepError
    kind = "sweep"
    writer = "another `treespec sweep`"

    def _foreign(self, name: str) -> bool:
        # A dot is in front of what is ours and temporary, and of what systems leave everywhere.
        return not name.startswith(".") and name not in _OURS

    @property
    def manifest_path(self) -> Path:
        """Of `sweep.json`."""
        return self.path / "sweep.json"

    def job(self, name: str) -> Path:
        """The folder of a job."""
        return self.path / "jobs" / name

    @property
    def logs(self) -> Path:
        """The folder of what workers print."""
        return self.path / "logs"

    def manifest(self) -> dict[str, Any] | None:
        """The parsed `sweep.json`, None if nothing was started here.

        Raises:
            SweepError: if it is damaged, or of a newer treespec.
        """
        return read_manifest(self.path) if self.manifest_path.exists() else None

    def start(
        self, grid: Grid, session: Mapping[str, Any], *, allow_versions: bool = False
    ) -> dict[str, Any]:
        """Write or continue the manifest, and the config of every job.

        Args:
            grid: what is swept.
            session: how the jobs will be run; noted with the time.
            allow_versions: continue a sweep that was planned with other versions.

        Raises:
            SweepError: if the folder belongs to another grid, naming what differs.
            VersionsDiffer: if it was planned with other code or packages.
        """
        found, here = self.manifest(), versions_here()
        if found is None:
            manifest: dict[str, Any] = {
                "schema_version": SWEEP_VERSION,
                "name": grid.name,
                "config_file": str(grid.path),
                "grid": {key: list(values) for key, values in grid.axes.items()},
                "base": _base(grid),
                "grid_hash": grid.hash,
                "jobs": [
                    {
                        "name": job.name,
                        "values": dict(job.values),
                        "config_hash": config_hash(job.config),
                    }
                    for job in grid.jobs
                ],
                "versions": here,
                "created": now(),
                "finished": None,
                "sessions": [],
            }
        else:
            manifest = found
            self._require_same(manifest, grid)
            changed = different_versions(manifest["versions"], here)
            if changed and not allow_versions:
                raise VersionsDiffer(
                    f"{self.path} was planned with other versions; --allow-versions continues all the "
                    "same, --fresh starts anew. What differs:\n" + _lines(changed)
                )
        entry = {"started": now(), **session, "versions": here}
        manifest = manifest | {"finished": None, "sessions": [*manifest["sessions"], entry]}
        for job in grid.jobs:
            path = self.job(job.name) / "config.yaml"
            # Without a manifest, what is there is of a killed start, perhaps with another config.
            if found is None or not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_yaml(path, config_data(job.config))
        write_json(self.manifest_path, manifest)
        return manifest

    def _require_same(self, manifest: Mapping[str, Any], grid: Grid) -> None:
        if manifest["grid_hash"] == grid.hash:
            return
        before = {"sweep": manifest["grid"], **manifest["base"]}
        after = {"sweep": {k: list(v) for k, v in grid.axes.items()}, **_base(grid)}
        changed = differences(before, after)
        raise SweepError(
            f"{self.path} belongs to another sweep; give another folder with --out, or start anew with "
            "--fresh, which deletes its results. What differs:\n"
            + _lines(changed or ["(a config of another version)"])
        )

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Say in the manifest that every job has come to its end."""
        write_json(self.manifest_path, dict(manifest) | {"finished": now()})

    def clear(self) -> None:
        """Delete what a sweep writes, and nothing else. The manifest goes last."""
        for name in _OURS:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.manifest_path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The parsed `sweep.json` of a folder.

    Raises:
        SweepError: if it is damaged, or of a newer treespec.
    """
    path = folder / "sweep.json"
    try:
        data = read_json(path)
    except SweepError as error:
        raise SweepError(
            f"{error}; give another folder with --out, or start anew with --fresh"
        ) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    newer = type(version) is int and version > SWEEP_VERSION
    problem = fits(data, _FORM) if isinstance(data, dict) else "the object with its keys is missing"
    if not newer and problem:
        raise SweepError(
            f"{path} is no manifest of a sweep ({problem}); give another folder with --out, or start anew "
            "with --fresh"
        )
    if newer:
        raise SweepError(
            f"{path} has schema version {data['schema_version']!r}, but this treespec reads versions up "
            f"to {SWEEP_VERSION}; use the newer treespec that wrote it"
        )
    return data


def _base(grid: Grid) -> dict[str, Any]:
    return {key: value for key, value in grid.base.items() if key != "output"}


def _lines(changed: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in changed)


def _write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
