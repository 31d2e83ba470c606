"""The folder of a run: who may write it, what is finished in it, and how a killed run goes on."""

import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from treespec.experiments.config.schema import Config, refresh
from treespec.experiments.errors import DISK_FULL, ForeignFolder, RunFolderError, RunNotWritten
from treespec.experiments.records.changes import differences
from treespec.experiments.records.held_folder import HeldFolder
from treespec.experiments.records.manifest import config_data, config_hash, now
from treespec.experiments.records.manifest_form import checked_manifest
from treespec.experiments.records.own_files import Kind
from treespec.experiments.records.rows import (
    SCHEMA_VERSION,
    PromptRow,
    Row,
    StepRow,
    TreeRow,
    append_lines,
    read_lines,
    to_frame,
    write_lines,
)
from treespec.experiments.records.tables import METADATA

if TYPE_CHECKING:
    import polars

__all__ = ["RUN", "RunFolder"]

_TABLES: dict[str, type[Row]] = {"trees": TreeRow, "steps": StepRow, "prompts": PromptRow}
"""In the order in which they are written: the prompts last, which say that a unit is finished."""

FIGURES = ("speedup", "prompts", "size", "scaling", "stages", "accepted", "prediction")
"""Names of the figures of a report."""

_FILES = (
    "manifest.json",
    *(f"{name}.jsonl" for name in _TABLES),
    *(f"{name}.parquet" for name in _TABLES),
)
_PLACES = (
    rf"({'|'.join(_TABLES)})\.(jsonl|parquet)",
    r"manifest\.json|report\.html",
    rf"figures/({'|'.join(FIGURES)})\.(svg|png)",
    r"plugins/[\w.+-]+\.py",
    r"search/((config|latency)\.json|trace-\d+-\w+\.npz|(best|calibration|between)-\d+\.json)",
)

"""What a run writes, and `search/between-*.json`, which runs of schema 2 wrote."""

RUN = Kind(
    name="run",
    what="run folder",
    manifest="manifest.json",
    places=re.compile("|".join(_PLACES)),
    folders=("figures", "search", "plugins"),
    error=RunFolderError,
    foreign=ForeignFolder,
)


class RunFolder(HeldFolder):
    """A run folder, held by one process at a time (`with RunFolder(path) as folder:`).

    Args:
        path: made if it does not exist.

    Raises:
        ForeignFolder: on entering, if the path is not a run folder, before anything is written.
        RunFolderError: on entering, if another process holds it; later, if it cannot be written.
    """

    kind = RUN
    writer = "another process"

    # -- manifest -------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, None if nothing was started here.

        Raises:
            RunFolderError: if it is damaged, or has another schema.
        """
        if not self.manifest_path.exists():
            return None
        other = "go on with the treespec that wrote it, or give another folder with --out"
        data = checked_manifest(
            self.manifest_path,
            "start over with --fresh",
            other,
            needed=("config", "config_hash", "finished"),
        )
        if data.get("schema_version") not in (None, SCHEMA_VERSION):
            raise RunFolderError(
                f"{self.path} was written in schema version {data['schema_version']}, but runs go on in "
                f"version {SCHEMA_VERSION} only; {other}"
            )
        return data

    @property
    def search(self) -> Path:
        """The folder of what is measured before the run."""
        return self.path / "search"

    def keep(self, path: Path, content: str | bytes) -> None:
        """Write a file of this folder so that it is there whole or not at all.

        Raises:
            RunFolderError: if it cannot be written. What was finished before stays so.
        """
        with self._writing():
            self.files.write(path.relative_to(self.path).as_posix(), content)

    def _measured(self) -> bool:
        return any(re.match(r"search/(trace|latency)", name) for name in self.files.began)

    def forget_search(self) -> None:
        """Remove what was measured for another config."""
        with self._writing():
            self.files.remove(n for n in self.files.mark.names if re.fullmatch("search/.+", n))

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, atomically. From now on nothing of this start is taken back."""
        data = manifest | {"folder_id": self.files.id}
        self.keep(self.manifest_path, json.dumps(data, indent=2, ensure_ascii=False))
        self.settle()

    def require_same(self, config: Config) -> None:
        """Refuse a folder that was started with another config.

        A key that the config did not have when the run was started has its default.

        Raises:
            RunFolderError: naming the keys that differ, and the ways out.
        """
        manifest = self.manifest()
        if manifest is None or config_hash(config) in (
            manifest["config_hash"],
            _completed_hash(manifest["config"]),
        ):
            return
        changed = differences(manifest["config"], config_data(config))
        raise RunFolderError(
            f"{self.path} belongs to another config; give another folder with --out, or start over with "
            "--fresh, which deletes its results. What differs:\n"
            + "\n".join(f"  {line}" for line in changed or ["(a config of another version)"])
        )

    def clear(self) -> None:
        """Delete what this folder's own list names, and nothing else. The manifest goes last."""
        with self._writing():
            self.files.clear()

    # -- rows -----------------------------------------------------------------------------------

    def append(
        self,
        prompts: Sequence[PromptRow],
        steps: Sequence[StepRow],
        trees: Sequence[TreeRow] = (),
    ) -> None:
        """Write a finished unit: its trees and steps, then its prompts, whose last line finishes it.

        Raises:
            RunFolderError: if they cannot be written. What was finished before stays so.
        """
        with self._writing():
            self._claim()
            if trees:
                append_lines(self._log("trees"), trees)
            append_lines(self._log("steps"), steps)
            append_lines(self._log("prompts"), prompts)

    def recover(
        self, methods: Collection[str], drop_errors: bool = False, *, write: bool = True
    ) -> set[tuple[int, str, int]]:
        """Keep the rows of finished units only, and say which these are.

        Args:
            methods: the names of all methods; a unit is finished when it has a row for each.
            drop_errors: count units that hold an error as not finished.
            write: without it, only say.

        Raises:
            RunFolderError: if a line is no row, or a row appears twice.
        """
        prompts = read_lines(self._log("prompts"), PromptRow)
        decoded: dict[tuple[int, str, int], set[str]] = {}
        failed = set()
        for number, row in enumerate(prompts, start=1):
            if row.method in decoded.setdefault(row.unit, set()):
                raise RunFolderError(
                    f"{self._log('prompts')}, line {number}: prompt {row.prompt}, "
                    f"{row.sampling}, {row.method} appears twice; remove one, or start over with --fresh"
                )
            decoded[row.unit].add(row.method)
            if row.error is not None and drop_errors:
                failed.add(row.unit)
        rows: dict[str, Sequence[Row]] = {
            "prompts": prompts,  # written first: nothing counts as finished that has lost its steps
            "steps": read_lines(self._log("steps"), StepRow),
            "trees": read_lines(self._log("trees"), TreeRow),
        }
        finished = {unit for unit, names in decoded.items() if names == set(methods)}
        finished -= failed | _without_steps(prompts, rows["steps"], rows["trees"])
        if not write:
            return finished
        with self._writing():
            self._claim()
            for name, kept in rows.items():
                write_lines(self._log(name), [r for r in kept if r.unit in finished], self.keep)
        return finished

    def failures(self) -> list[PromptRow]:
        """The rows that hold an error."""
        rows = read_lines(self._log("prompts"), PromptRow)
        return [row for row in rows if row.error is not None]

    def finish(self, manifest: dict[str, Any]) -> None:
        """Write the tables, then say in the manifest that the run is finished."""
        samplings = {s["name"]: i for i, s in enumerate(manifest["samplings"])}
        prompts = read_lines(self._log("prompts"), PromptRow)
        orders = {(*row.unit, row.method): row.order for row in prompts}

        def place(row: Row) -> tuple[int, ...]:
            order = orders[*row.unit, row.method]
            step = getattr(row, "step", 0)
            return row.prompt, samplings[row.sampling], row.repeat, order, step

        for name, kind in _TABLES.items():
            rows = sorted(read_lines(self._log(name), kind), key=place)
            self.keep(self.path / f"{name}.parquet", _parquet(to_frame(rows, kind)))
        errors = sum(row.error is not None for row in prompts)
        self.write_manifest(manifest | {"finished": now(), "errors": errors})

    def _claim(self) -> None:
        """Name all that rows are written to, once."""
        self.files.claim(*_FILES)

    def _log(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say of a write that fails in which folder, and how to go on."""
        try:
            yield
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            full = error.errno in DISK_FULL or "No space left" in str(error)
            mend = "free some space on its disk" if full else "make it writable"
            raise RunNotWritten(
                f"{self.path} cannot be written: {error.strerror or error}. Every finished prompt is kept: "
                f"{mend}, and the same command goes on"
            ) from None


def _without_steps(
    prompts: Sequence[PromptRow], steps: Sequence[Row], trees: Sequence[Row]
) -> set[tuple[int, str, int]]:
    """Units that have lost steps, or some of their trees: a kill cannot do that, a damaged line can."""
    counts = [Counter((*row.unit, row.method) for row in rows) for rows in (steps, trees)]
    traced, lost = {row.unit for row in trees}, set()
    for row in prompts:
        kept = row.unit in traced and row.verify_s is not None  # trees are those of our loop
        counted = [count[*row.unit, row.method] for count in counts]
        if row.error is None and counted != [row.steps, row.steps * kept]:
            lost.add(row.unit)
    return lost


def _completed_hash(config: dict[str, Any]) -> str | None:
    """The hash of a stored config, keys that were not known then filled in; None if it is invalid."""
    refresh()
    try:
        return config_hash(Config.model_validate(config))
    except ValidationError:
        return None


def _parquet(frame: "polars.DataFrame") -> bytes:
    """A table as the bytes of its file.

    In memory, because polars has errors of its own for a disk that is full.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=METADATA)
    return buffer.getvalue()
