"""The folder of a run: who may write it, what is finished in it, and how a killed run goes on."""

import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from experiments.changes import differences
from experiments.config import Config
from experiments.disk_full import DISK_FULL
from experiments.errors import RunFolderError
from experiments.held_folder import HeldFolder
from experiments.manifest import config_data, config_hash, now
from experiments.manifest_form import checked_manifest
from experiments.record_tables import METADATA
from experiments.records import (
    PromptRow,
    Row,
    StepRow,
    TreeRow,
    append_lines,
    read_lines,
    to_frame,
    write_lines,
)

if TYPE_CHECKING:
    import polars

__all__ = ["RunFolder"]

_TABLES: dict[str, type[Row]] = {"trees": TreeRow, "steps": StepRow, "prompts": PromptRow}
"""In the order in which they are written: the prompts last, which say that a unit is finished."""

_OURS = (
    *(f"{name}.jsonl" for name in reversed(_TABLES)),
    *(f"{name}.parquet" for name in reversed(_TABLES)),
    "report.html",
    "figures",
    "search",
)
_TEMPORARY = ("manifest.tmp", *(f"{name}.tmp" for name in _TABLES), "report.tmp")


class RunFolder(HeldFolder):
    """A run folder, held by one process at a time (`with RunFolder(path) as folder:`).

    Args:
        path: made if it does not exist.

    Raises:
        RunFolderError: on entering, if the path is no folder of a run, or another process holds it; later,
            if it cannot be written.
    """

    error = RunFolderError
    kind = "run folder"
    writer = "another process"

    def _foreign(self, name: str) -> bool:
        return name not in (".lock", *_OURS, *_TEMPORARY)

    # -- manifest -------------------------------------------------------------------------------

    @property
    def manifest_path(self) -> Path:
        """Of `manifest.json`."""
        return self.path / "manifest.json"

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, None if nothing was started here.

        Raises:
            RunFolderError: if it is damaged, or has a newer schema.
        """
        if not self.manifest_path.exists():
            return None
        return checked_manifest(
            self.manifest_path,
            "start anew with --fresh",
            "go on with the newer treespec that wrote it, or give another folder with --out",
            needed=("config", "config_hash", "finished"),
        )

    @property
    def search(self) -> Path:
        """The folder of what is measured before the run."""
        return self.path / "search"

    def keep(self, path: Path, text: str) -> None:
        """Write a file of this folder so that it is there whole or not at all.

        Raises:
            RunFolderError: if it cannot be written. What was finished before stays so.
        """
        self._replace(path, path.with_name(f"new-{path.name}"), text)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, atomically."""
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        self._replace(self.manifest_path, self.path / "manifest.tmp", text)

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
            f"{self.path} belongs to another config; give another folder with --out, or start anew with "
            "--fresh, which deletes its results. What differs:\n"
            + "\n".join(f"  {line}" for line in changed or ["(a config of another version)"])
        )

    def clear(self) -> None:
        """Delete what a run writes, and nothing else. The manifest goes last."""
        with self._writing():
            for name in (*_OURS, *_TEMPORARY):
                path = self.path / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.manifest_path.unlink(missing_ok=True)

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
            if trees:
                append_lines(self._log("trees"), trees)
            append_lines(self._log("steps"), steps)
            append_lines(self._log("prompts"), prompts)

    def recover(
        self, methods: Collection[str], drop_errors: bool = False
    ) -> set[tuple[int, str, int]]:
        """Keep the rows of finished units only, and say which these are.

        Args:
            methods: the names of all methods; a unit is finished when it has a row for each.
            drop_errors: count units that hold an error as not finished.

        Raises:
            RunFolderError: if a line is no row, or a row stands twice.
        """
        prompts = read_lines(self._log("prompts"), PromptRow)
        found: dict[tuple[int, str, int], set[str]] = {}
        failed = set()
        for number, row in enumerate(prompts, start=1):
            if row.method in found.setdefault(row.unit, set()):
                raise RunFolderError(
                    f"{self._log('prompts')}, line {number}: prompt {row.prompt}, "
                    f"{row.sampling}, {row.method} stands twice; remove one, or start anew with --fresh"
                )
            found[row.unit].add(row.method)
            if row.error is not None and drop_errors:
                failed.add(row.unit)
        rows: dict[str, Sequence[Row]] = {
            "prompts": prompts,  # written first: nothing counts as finished that has lost its steps
            "steps": read_lines(self._log("steps"), StepRow),
            "trees": read_lines(self._log("trees"), TreeRow),
        }
        finished = {unit for unit, names in found.items() if names == set(methods)}
        finished -= failed | _without_steps(prompts, rows["steps"], rows["trees"])
        with self._writing():
            for name, kept in rows.items():
                write_lines(self._log(name), [row for row in kept if row.unit in finished])
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
            temporary = self.path / f"{name}.tmp"
            with self._writing():
                _write(temporary, to_frame(rows, kind))
                temporary.replace(self.path / f"{name}.parquet")
        errors = sum(row.error is not None for row in prompts)
        self.write_manifest(manifest | {"finished": now(), "errors": errors})

    def _replace(self, path: Path, temporary: Path, text: str) -> None:
        with self._writing(), temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with self._writing():
            temporary.replace(path)

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
            raise RunFolderError(
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
        if row.verify_s is not None:  # of our loop, which alone records steps
            found = [count[*row.unit, row.method] for count in counts]
            if found != [row.steps, row.steps if row.unit in traced else 0]:
                lost.add(row.unit)
    return lost


def _completed_hash(config: dict[str, Any]) -> str | None:
    """The hash of a stored config, keys that were not known then filled in; None if it is invalid."""
    try:
        return config_hash(Config.model_validate(config))
    except ValidationError:
        return None


def _write(path: Path, frame: "polars.DataFrame") -> None:
    """Write a table and wait until the disk has it.

    By way of memory: polars has errors of its own for a disk that is full.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=METADATA)
    with path.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
