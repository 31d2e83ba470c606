"""The folder of a sweep: its manifest, the folders of its jobs, and the lock on writing it.

sweep.json               grid, base config, jobs, versions; marks the folder as ours; replaced atomically
jobs/<name>/config.yaml  an ordinary config
jobs/<name>/run/         an ordinary run folder: `treespec report` works on it
jobs/<name>/attempts/    how each attempt at the job ended
plugins/                 copies of the plug-ins, which workers load
logs/                    output of the workers
prompts.parquet, summary.parquet, summary.json   the collected result
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from treespec.experiments.config.plugged import plugin_copies, require_same_plugins, told
from treespec.experiments.errors import RunFolderError, SweepError, SweepNotWritten, VersionsDiffer
from treespec.experiments.records.changes import differences
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.held_folder import HeldFolder, remove_empty, temporaries
from treespec.experiments.records.manifest import config_data, config_hash, environment, now
from treespec.experiments.sweep.attempts import Task
from treespec.experiments.sweep.collect import Collected, collect
from treespec.experiments.sweep.grid import Grid
from treespec.reading_models import read_form

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

_FIXED = ("prompts.parquet", "summary.parquet", "summary.json")
_OF_SLURM = re.compile(
    r"[\d_]+_(submitted\.pkl|submission\.sh|result\.pkl|log\.(out|err))|\.?submission_file_\w+\.sh"
)
"""Files that submitit leaves in `logs/slurm/`."""


class _Job(BaseModel):
    name: str
    values: dict[str, Any]
    config_hash: str


class _Sweep(BaseModel):
    grid: dict[str, list[Any]]
    base: dict[str, Any]
    grid_hash: str
    jobs: list[_Job]
    versions: dict[str, Any]
    finished: str | None
    sessions: list[dict[str, Any]]


class SweepFolder(HeldFolder):
    """A sweep's folder, held by one process at a time (`with SweepFolder(path) as folder:`).

    Raises:
        SweepError: on entering, if the path is not a sweep's folder, or another process holds it.
    """

    what, manifest_name, marks = "sweep", "sweep.json", "grid_hash"
    version, folders = SWEEP_VERSION, ("jobs", "logs/slurm", "logs", "plugins")
    error, foreign, not_written = SweepError, SweepError, SweepNotWritten
    goes_on = "Finished results are kept, and the same command resumes the sweep"

    def own_files(self) -> list[Path]:
        """The collected result, plug-ins, and the files of the jobs that the manifest names."""
        jobs = [self.job(name) for name in self._jobs()]
        slurm = (self.logs / "slurm").glob("*")
        return [
            *(self.path / name for name in _FIXED),
            *(job / name for job in jobs for name in ("config.yaml", "slurm.json")),
            *(path for job in jobs for path in (job / "attempts").glob("[0-9][0-9][0-9].json")),
            *(self.logs / f"{job.name}.log" for job in jobs),
            *(path for path in slurm if _OF_SLURM.fullmatch(path.name)),
            *plugin_copies(self.manifest_path),
            *temporaries(self.path, *self.folders, *(f"jobs/{job.name}" for job in jobs)),
        ]

    def measured(self) -> bool:
        """False: a sweep measures nothing before its manifest is written."""
        return False

    def _jobs(self) -> list[str]:
        jobs = self._data().get("jobs")
        entries = jobs if isinstance(jobs, list) else ()
        names = [job.get("name") for job in entries if isinstance(job, dict)]
        own = [name for name in names if isinstance(name, str) and name not in ("", ".", "..")]
        return [name for name in own if Path(name).name == name]

    def clear(self) -> None:
        """Delete our files and the runs of the jobs, and nothing else.

        Raises:
            SweepError: before anything is deleted, if another process writes to a run.
        """
        jobs = [self.job(name) for name in self._jobs()]
        runs = [RunFolder(job / "run") for job in jobs if not (job / "run").is_symlink()]
        runs = [run for run in runs if run.manifest_path.exists()]
        try:
            for run in runs:
                with run:
                    pass
            for run in runs:
                with run:
                    run.dissolve()
                    if run.manifest_path.exists():
                        raise SweepError(f"{run.path} cannot be cleared: make it writable")
                remove_empty([run.path])
        except RunFolderError as error:
            raise SweepError(str(error)) from None
        with self._writing():
            self._remove(self.own_files())
        remove_empty(folder for job in jobs for folder in (job / "attempts", job))
        super().clear()

    def job(self, name: str) -> Path:
        return self.path / "jobs" / name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def start(
        self, grid: Grid, session: Mapping[str, Any], *, allow_versions: bool = False
    ) -> dict[str, Any]:
        """Write or continue the manifest, and write the config of every job.

        Raises:
            SweepError: if the folder belongs to another grid, naming the differences; if its manifest is
                damaged, or of a newer treespec.
            VersionsDiffer: if the sweep was planned with other code or packages.
        """
        new = self.own_manifest()["grid_hash"] is None
        earlier = None if new else read_manifest(self.path)
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
        self.keep_plugins()
        self.keep_manifest(manifest)
        for job in grid.jobs:
            path = self.job(job.name) / "config.yaml"
            if not path.exists():
                config = config_data(job.config)
                self.keep(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        return manifest

    def task(self, name: str, attempt: int) -> Task:
        return Task(name, self.job(name), attempt, self.logs / f"{name}.log")

    def collected(self, manifest: Mapping[str, Any]) -> Collected:
        with self._writing():
            return collect(self.path, manifest)

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
        self.keep_manifest(dict(manifest) | {"finished": now()})


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "sweep.json"
    way_out = "choose another folder with --out, or start over with --fresh"
    data = read_form(path, SweepError, way_out)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SWEEP_VERSION:
        raise SweepError(
            f"{path} has schema version {version!r}, but this treespec reads version {SWEEP_VERSION}: use "
            f"the treespec that wrote it; {way_out}"
        )
    return read_form(path, SweepError, f"it is not the manifest of a sweep; {way_out}", _Sweep)


def _base(grid: Grid) -> dict[str, Any]:
    return {key: value for key, value in grid.base.items() if key != "output"}


def _lines(changed: Sequence[str]) -> str:
    return "\n".join(f"  {line}" for line in changed)
