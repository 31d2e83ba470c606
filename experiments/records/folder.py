"""The folder of a run: write its manifest and rows, find the finished units, recover a killed run."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from treespec.experiments.config.plugged import plugin_copies
from treespec.experiments.config.schema import MOST_METHODS, Config, refresh
from treespec.experiments.errors import ForeignFolder, RunFolderError, RunNotWritten
from treespec.experiments.records.changes import differences
from treespec.experiments.records.held_folder import HeldFolder, temporaries
from treespec.experiments.records.loading import Resumed, checked_manifest
from treespec.experiments.records.manifest import config_data, config_hash, now
from treespec.experiments.records.measured import STAMP, stamped
from treespec.experiments.records.rows import (
    SCHEMA_VERSION,
    PromptRow,
    Row,
    StepRow,
    TreeRow,
    append_lines,
    as_parquet,
    read_lines,
    read_table,
    to_frame,
    write_lines,
)
from treespec.tree import Law

_TABLES: dict[str, type[Row]] = {"trees": TreeRow, "steps": StepRow, "prompts": PromptRow}
"""In the order in which they are written: prompts come last, because they mark a unit as finished."""

FIGURES = ("speedup", "prompts", "size", "scaling", "stages", "accepted", "prediction")

_FIXED = (
    # Tables first: a killed `clear` leaves no table without its log.
    *(f"{name}.{end}" for end in ("parquet", "jsonl") for name in _TABLES),
    "report.html",
    *(f"figures/{name}.{end}" for name in FIGURES for end in ("svg", "png")),
)


class RunFolder(HeldFolder):
    """A run folder, locked by one process at a time (`with RunFolder(path) as folder:`)."""

    what, manifest_name, marks = "run folder", "manifest.json", "config_hash"
    version, folders = SCHEMA_VERSION, ("figures", "search", "plugins")
    error, foreign, not_written = RunFolderError, ForeignFolder, RunNotWritten
    goes_on = "Every finished prompt is kept: {remedy}, then resume with the same command"

    def own_files(self) -> list[Path]:
        return [
            *(self.path / name for name in _FIXED),
            *self._measurements(),
            *plugin_copies(self.manifest_path),
            *temporaries(self.path, *self.folders),
        ]

    def measured(self) -> bool:
        return any(path.name.startswith(("trace", "latency")) for path in self._measurements())

    def _measurements(self) -> list[Path]:
        """The files in `search/` by their exact names, as far as there are sampling settings."""
        samplings = self._data().get("samplings")
        settings = range(len(samplings) if isinstance(samplings, list) else MOST_METHODS)
        names = {"config.json", "latency.json"}
        names |= {f"{what}-{i}.json" for what in ("best", "calibration") for i in settings}
        names |= {f"trace-{i}-{law}.npz" for law in Law for i in settings}
        return [path for path in self.search.glob("*") if path.name in names]

    # -- manifest -------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any] | None:
        if self.own_manifest()["config_hash"] is None:
            return None
        way_out = "resume it with the treespec that wrote it, or choose another folder with --out"
        data = checked_manifest(self.manifest_path, "start over with --fresh", way_out, Resumed)
        if data.get("schema_version") not in (None, SCHEMA_VERSION):
            raise RunFolderError(
                f"{self.path} was written in schema version {data['schema_version']}, but only runs of "
                f"version {SCHEMA_VERSION} can be resumed; {way_out}"
            )
        return data

    @property
    def search(self) -> Path:
        return self.path / "search"

    def forget_search(self) -> None:
        with self._writing():
            self._remove(self._measurements())

    def require_same(self, config: Config) -> None:
        """Refuse a folder that was started with another config, or with results that would be lost.

        Keys that did not exist when the run was started count as having their defaults.
        """
        manifest = self.manifest()
        self._require_known(manifest is not None, config)
        if manifest is None or config_hash(config) in (
            manifest["config_hash"],
            _completed_hash(manifest["config"]),
        ):
            return
        changed = differences(manifest["config"], config_data(config))
        raise RunFolderError(
            f"{self.path} belongs to another config: choose another folder with --out, or start over with "
            "--fresh, which deletes its results. Differences:\n"
            + "\n".join(f"  {line}" for line in changed or ["(a config of another version)"])
        )

    def _require_known(self, started: bool, config: Config) -> None:
        """Refuse results that no complete manifest or log tells of, as a start would replace them."""
        lost: list[tuple[Path, Path]] = []
        for name, kind in _TABLES.items():
            log, table = self._log(name), self.path / f"{name}.parquet"
            if not started and log.exists() and log.stat().st_size:
                lost.append((log, self.manifest_path))
            if table.exists() and not (started and log.exists()) and len(read_table(table, kind)):
                lost.append((table, log if started else self.manifest_path))
        stamp, own = self.search / STAMP, config_hash(config)
        if not started and self.measured() and stamped(stamp)["config_hash"] != own:
            lost.append((self.search, stamp))
        for results, unknown in lost:
            raise RunFolderError(
                f"{results} holds results that this start would replace, since {unknown} is missing or of "
                "another config: restore it, choose another folder with --out, or start over with --fresh, "
                "which deletes them"
            )

    # -- rows -----------------------------------------------------------------------------------

    def append(
        self,
        prompts: Sequence[PromptRow],
        steps: Sequence[StepRow],
        trees: Sequence[TreeRow] = (),
    ) -> None:
        """Append the rows of a finished unit: trees, steps, then prompts, which mark it as finished."""
        with self._writing():
            if trees:
                append_lines(self._log("trees"), trees)
            append_lines(self._log("steps"), steps)
            append_lines(self._log("prompts"), prompts)

    def recover(
        self,
        methods: Collection[str],
        drop_errors: bool = False,
        *,
        batch: int = 1,
        write: bool = True,
    ) -> set[tuple[int, str, int]]:
        """Find the finished units, and remove the rows of all others.

        Args:
            methods: the names of all methods; a unit is finished when it has a row for each.
            drop_errors: count units that hold an error as not finished.
            batch: number of prompts that are decoded side by side, and count as finished together.
            write: whether to remove rows; if False, the folder is not changed.
        """
        prompts = read_lines(self._log("prompts"), PromptRow)
        decoded = defaultdict[tuple[int, str, int], set[str]](set)
        for number, row in enumerate(prompts, start=1):
            if row.method in decoded[row.unit]:
                raise RunFolderError(
                    f"{self._log('prompts')}, line {number}: prompt {row.prompt}, "
                    f"{row.sampling}, {row.method} appears twice; remove one, or start over with --fresh"
                )
            decoded[row.unit].add(row.method)
        failed = {row.unit for row in prompts if row.error is not None and drop_errors}
        rows: dict[str, Sequence[Row]] = {
            "prompts": prompts,  # rewritten first, so that no unit without its steps counts as finished
            "steps": read_lines(self._log("steps"), StepRow),
            "trees": read_lines(self._log("trees"), TreeRow),
        }
        finished = {unit for unit, names in decoded.items() if names == set(methods)}
        finished -= failed | _without_steps(prompts, rows["steps"], rows["trees"])
        finished = _of_whole_batches(finished, batch)
        if write:
            with self._writing():
                for name, table in rows.items():
                    write_lines(
                        self._log(name), [row for row in table if row.unit in finished], self.keep
                    )
        return finished

    def failures(self) -> list[PromptRow]:
        return [row for row in read_lines(self._log("prompts"), PromptRow) if row.error is not None]

    def finish(self, manifest: dict[str, Any]) -> None:
        samplings = {s["name"]: i for i, s in enumerate(manifest["samplings"])}
        prompts = read_lines(self._log("prompts"), PromptRow)
        orders = {(*row.unit, row.method): row.order for row in prompts}

        def sort_key(row: Row) -> tuple[int, ...]:
            order, step = orders[*row.unit, row.method], getattr(row, "step", 0)
            return row.prompt, samplings[row.sampling], row.repeat, order, step

        for name, kind in _TABLES.items():
            rows = sorted(read_lines(self._log(name), kind), key=sort_key)
            self.keep(self.path / f"{name}.parquet", as_parquet(to_frame(rows, kind)))
        errors = sum(row.error is not None for row in prompts)
        self.keep_manifest(manifest | {"finished": now(), "errors": errors})

    def _log(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"


def _without_steps(
    prompts: Sequence[PromptRow], steps: Sequence[Row], trees: Sequence[Row]
) -> set[tuple[int, str, int]]:
    """Units that lack steps, or some of their trees: a kill does not cause that, but damaged lines do."""
    step_counts = Counter((*row.unit, row.method) for row in steps)
    tree_counts = Counter((*row.unit, row.method) for row in trees)
    with_trees = {row.unit for row in trees}

    def complete(row: PromptRow) -> bool:
        has_trees = row.unit in with_trees and row.verify_s is not None  # only our loop keeps trees
        key = (*row.unit, row.method)
        return step_counts[key] == row.steps and tree_counts[key] == row.steps * has_trees

    return {row.unit for row in prompts if row.error is None and not complete(row)}


def _of_whole_batches(finished: set[tuple[int, str, int]], batch: int) -> set[tuple[int, str, int]]:
    """The finished units of batches whose prompts are all finished."""
    counts = Counter((prompt // batch, *more) for prompt, *more in finished)
    return {unit for unit in finished if counts[unit[0] // batch, *unit[1:]] == batch}


def _completed_hash(config: dict[str, Any]) -> str | None:
    """The hash of a stored config with defaults for keys added since then; None if it is invalid."""
    refresh()
    try:
        return config_hash(Config.model_validate(config))
    except ValidationError:
        return None
