"""The folder of a sweep: its manifest, the folders of its jobs, and the lock on writing it.

sweep.json               grid, base config, jobs, versions; replaced atomically
jobs/<name>/config.yaml  an ordinary config
jobs/<name>/run/         an ordinary run folder: `treespec report` works on it
jobs/<name>/attempts/    how each attempt at the job ended
plugins/                 copies of the plug-ins, which workers load
logs/                    output of the workers
.treespec                marks the folder as treespec's, and lists the files made in it (`records.mark`)
prompts.parquet, summary.parquet, summary.json   the collected result
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml

from treespec.experiments.config.plugged import FOLDER, require_same_plugins, told
from treespec.experiments.errors import SweepError, SweepNotWritten, VersionsDiffer
from treespec.experiments.records.changes import differences
from treespec.experiments.records.folder import RUN
from treespec.experiments.records.forms import DATA, NAME, misfit, parsed, with_keys
from treespec.experiments.records.held_folder import HeldFolder
from treespec.experiments.records.manifest import config_data, config_hash, environment, now
from treespec.experiments.records.manifest_form import PLUGINS
from treespec.experiments.records.own_files import Kind
from treespec.experiments.sweep.attempts import Task
from treespec.experiments.sweep.grid import Grid
from treespec.plugin_files import in_use
from treespec.reading_models import only

__all__ = [
    "SWEEP",
    "SWEEP_VERSION",
    "SweepFolder",
    "different_versions",
    "read_manifest",
    "versions_here",
]

PACKAGES = ("python", "torch", "transformers", "tokenizers", "triton")


def versions_here() -> dict[str, Any]:
    """The versions in this process that affect results; workers must have those of the planned sweep."""
    here = environment()
    return {
        "treespec": here["treespec_version"],
        "git": here["git_hash"],
        **{name: here["versions"][name] for name in PACKAGES},
    }


def different_versions(planned: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """A line such as `torch: 2.13.0 was planned, 2.12.1 is here` for each version that differs.

    Versions that the sweep did not record (planned by an older treespec) are not compared.
    """
    return [
        f"{name}: {planned[name]} was planned, {here.get(name)} is here"
        for name in planned
        if planned[name] != here.get(name)
    ]


SWEEP_VERSION = 1
"""Version of the folder's layout and of `sweep.json`."""

SWEEP = Kind(
    name="sweep",
    what="sweep",
    manifest="sweep.json",
    places=re.compile(r"sweep\.json|summary\.json|(summary|prompts)\.parquet|plugins/[\w.+-]+\.py"),
    folders=("jobs", "logs", "plugins"),
    error=SweepError,
    foreign=SweepError,
    not_written=SweepNotWritten,
    goes_on="Finished results are kept, and the same command resumes the sweep",
    inner=RUN,
)
_JOB = with_keys({"name": NAME, "values": DATA, "config_hash": str})
_FORM = with_keys({
    "schema_version": Annotated[int, only(SWEEP_VERSION, f"must be {SWEEP_VERSION}")], "name?": str,
    "grid": dict[str, list[Any]], "base": DATA, "grid_hash": str,
    "jobs": list[_JOB], "versions": DATA,
    **PLUGINS,
    "finished": str | None, "sessions?": list[DATA],
})  # fmt: skip


class SweepFolder(HeldFolder):
    """A sweep's folder, held by one process at a time (`with SweepFolder(path) as folder:`).

    Args:
        path: of the folder; created if missing.

    Raises:
        SweepError: on entering, if the path is not a sweep's folder, or another process holds it.
    """

    kind = SWEEP
    writer = "another `treespec sweep`"

    def job(self, name: str) -> Path:
        """The folder of a job."""
        return self.path / "jobs" / name

    @property
    def logs(self) -> Path:
        """The folder for the output of workers."""
        return self.path / "logs"

    def start(
        self, grid: Grid, session: Mapping[str, Any], *, allow_versions: bool = False
    ) -> dict[str, Any]:
        """Write or continue the manifest, and write the config of every job.

        Args:
            grid: the sweep's grid.
            session: how the jobs will be run; recorded with the time.
            allow_versions: continue a sweep that was planned with other versions.

        Raises:
            SweepError: if the folder belongs to another grid, naming the differences; if its manifest is
                damaged, or of a newer treespec.
            VersionsDiffer: if the sweep was planned with other code or packages.
        """
        earlier = read_manifest(self.path) if self.manifest_path.exists() else None
        here = versions_here()
        if earlier is None:
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
                **told(),
                "versions": here,
                "created": now(),
                "finished": None,
                "sessions": [],
            }
        else:
            manifest = earlier
            self._require_same(manifest, grid)
            require_same_plugins(self.path, manifest, SweepError)
            changed = different_versions(manifest["versions"], here)
            if changed and not allow_versions:
                raise VersionsDiffer(
                    f"{self.path} was planned with other versions; --allow-versions continues anyway, "
                    "--fresh starts over. What differs:\n" + _lines(changed)
                )
        entry = {"started": now(), **session, "versions": here}
        manifest = manifest | {"finished": None, "sessions": [*manifest["sessions"], entry]}
        with self._writing():
            self.files.claim(*_names(grid))
            self.files.claim_inner(*_runs(grid))
        for file in in_use():
            self.keep(self.path / FOLDER / file.path.name, file.content)
        for job in grid.jobs:
            path = self.job(job.name) / "config.yaml"
            # Without a manifest, existing files are from a killed start, perhaps with another config.
            if earlier is None or not path.exists():
                config = config_data(job.config)
                self.keep(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        self._keep_manifest(manifest)
        return manifest

    def require_free(self, grid: Grid) -> None:
        """Reject a folder in which files that are not ours occupy the places of the grid's jobs.

        Raises:
            SweepError: naming the first such file.
        """
        self.files.require_free([*_names(grid), *_runs(grid)])

    def task(self, name: str, attempt: int) -> Task:
        """A new attempt at a job.

        The files that its worker will write are added to the folder's list now, because only the process
        that holds the folder writes that list.
        """
        with self._writing():
            self.files.claim(f"logs/{name}.log", f"jobs/{name}/attempts/{attempt:03d}.json")
        return Task(name, self.job(name), attempt, self.logs / f"{name}.log")

    def claim_logs(self, paths: Iterable[Path]) -> None:
        """Add files that an executor creates itself to the folder's list, before or after they exist."""
        inside = [path for path in paths if path.is_relative_to(self.path.resolve())]
        with self._writing():
            self.files.adopt(path.relative_to(self.path.resolve()).as_posix() for path in inside)

    def _keep_manifest(self, manifest: Mapping[str, Any]) -> None:
        data = dict(manifest) | {"folder_id": self.files.id}
        self.keep(self.manifest_path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def _require_same(self, manifest: Mapping[str, Any], grid: Grid) -> None:
        if manifest["grid_hash"] == grid.hash:
            return
        changed = differences(
            {"sweep": manifest["grid"], **manifest["base"]},
            {"sweep": {k: list(v) for k, v in grid.axes.items()}, **_base(grid)},
        )
        raise SweepError(
            f"{self.path} belongs to another sweep; choose another folder with --out, or start over with "
            "--fresh, which deletes its results. What differs:\n"
            + _lines(changed or ["(a config of another version)"])
        )

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Record in the manifest that every job has ended."""
        self._keep_manifest(dict(manifest) | {"finished": now()})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The parsed `sweep.json` of a folder.

    Raises:
        SweepError: if it is damaged, or of a newer treespec.
    """
    path = folder / "sweep.json"
    way_out = "choose another folder with --out, or start over with --fresh"
    data = parsed(path, SweepError, way_out)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is int and version > SWEEP_VERSION:
        raise SweepError(
            f"{path} has schema version {version!r}, but this treespec reads versions up to "
            f"{SWEEP_VERSION}; use the newer treespec that wrote it"
        )
    problem = misfit(data, _FORM) if isinstance(data, dict) else "expected a JSON object"
    if problem:
        raise SweepError(f"{path} is not the manifest of a sweep ({problem}); {way_out}")
    return data


def _base(grid: Grid) -> dict[str, Any]:
    return {key: value for key, value in grid.base.items() if key != "output"}


def _lines(changed: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in changed)


def _names(grid: Grid) -> list[str]:
    """The files that every sweep creates, except for the logs of its workers."""
    of_job = ("config.yaml", "slurm.json", "attempts/")
    return [
        *("sweep.json", "prompts.parquet", "summary.parquet", "summary.json"),
        *(f"jobs/{job.name}/{name}" for job in grid.jobs for name in of_job),
    ]


def _runs(grid: Grid) -> list[str]:
    return [f"jobs/{job.name}/run/" for job in grid.jobs]
