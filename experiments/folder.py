"""The folder of a run: who may write it, what is finished in it, and how a killed run goes on."""

import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from experiments.config import Config
from experiments.errors import RunFolderError
from experiments.manifest import config_data, config_hash, differences, now
from experiments.records import (
    PromptRow,
    StepRow,
    append_lines,
    read_lines,
    to_frame,
    write_lines,
)

__all__ = ["RunFolder"]

_OURS = (
    "prompts.jsonl",
    "steps.jsonl",
    "prompts.parquet",
    "steps.parquet",
    "report.html",
    "figures",
    "search",
)
_TEMPORARY = ("manifest.tmp", "prompts.tmp", "steps.tmp", "report.tmp")


class RunFolder:
    """A run folder, held by one process at a time (`with RunFolder(path) as folder:`).

    Args:
        path: made if it does not exist.

    Raises:
        RunFolderError: on entering, if the path is no folder of a run, or another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)

    def __enter__(self) -> Self:
        """Take the lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RunFolderError(f"{self.path} is a file; give another folder with --out") from None
        except OSError as error:
            raise RunFolderError(f"{self.path}: {error.strerror}") from None
        names = (entry.name for entry in self.path.iterdir())
        others = [name for name in names if name not in (".lock", *_OURS, *_TEMPORARY)]
        if others and not self._manifest_path.exists():
            raise RunFolderError(
                f"{self.path} holds files ({sorted(others)[0]}, ...) but is no run folder: "
                "give another with --out"
            )
        try:
            self._lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"{self.path} is being written by another process; wait for it, or give another folder "
                "with --out"
            ) from None
        except OSError as error:
            raise RunFolderError(f"{self.path}: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        self._lock.release()

    # -- manifest -------------------------------------------------------------------------------

    @property
    def _manifest_path(self) -> Path:
        return self.path / "manifest.json"

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, None if nothing was started here.

        Raises:
            RunFolderError: if it cannot be read.
        """
        if not self._manifest_path.exists():
            return None
        try:
            data = json.loads(self._manifest_path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{self._manifest_path}: {error}; start anew with --fresh"
            ) from None
        if not isinstance(data, dict) or not {"config", "config_hash", "finished"} <= set(data):
            raise RunFolderError(f"{self._manifest_path} is no manifest; start anew with --fresh")
        return data

    @property
    def search(self) -> Path:
        """The folder of what is measured before the run."""
        return self.path / "search"

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, atomically."""
        temporary = self.path / "manifest.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._manifest_path)

    def require_same(self, config: Config) -> None:
        """Refuse a folder that was started with another config.

        Raises:
            RunFolderError: naming the keys that differ, and the ways out.
        """
        manifest = self.manifest()
        if manifest is None or manifest["config_hash"] == config_hash(config):
            return
        changed = differences(manifest["config"], config_data(config))
        raise RunFolderError(
            f"{self.path} belongs to another config; give another folder with --out, or start anew with "
            "--fresh, which deletes its results. What differs:\n"
            + "\n".join(f"  {line}" for line in changed or ["(a config of another version)"])
        )

    def clear(self) -> None:
        """Delete what a run writes, and nothing else. The manifest goes last."""
        for name in (*_OURS, *_TEMPORARY):
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._manifest_path.unlink(missing_ok=True)

    # -- rows -----------------------------------------------------------------------------------

    def append(self, prompts: Sequence[PromptRow], steps: Sequence[StepRow]) -> None:
        """Write a finished unit: its steps, then its prompts, whose last line finishes it."""
        append_lines(self.path / "steps.jsonl", steps)
        append_lines(self.path / "prompts.jsonl", prompts)

    def recover(self, methods: Collection[str], drop_errors: bool = False) -> set[tuple[int, str]]:
        """Keep the rows of finished units only, and say which these are.

        Args:
            methods: the names of all methods; a unit is finished when it has a row for each.
            drop_errors: count units that hold an error as not finished.

        Raises:
            RunFolderError: if a line is no row, or a row stands twice.
        """
        rows = read_lines(self.path / "prompts.jsonl", PromptRow)
        steps = read_lines(self.path / "steps.jsonl", StepRow)
        found: dict[tuple[int, str], set[str]] = {}
        failed = set()
        for number, row in enumerate(rows, start=1):
            if row.method in found.setdefault(row.unit, set()):
                raise RunFolderError(
                    f"{self.path / 'prompts.jsonl'}, line {number}: prompt {row.prompt}, "
                    f"{row.sampling}, {row.method} stands twice; remove one, or start anew with --fresh"
                )
            found[row.unit].add(row.method)
            if row.error is not None and drop_errors:
                failed.add(row.unit)
        finished = {unit for unit, names in found.items() if names == set(methods)} - failed
        write_lines(self.path / "prompts.jsonl", [row for row in rows if row.unit in finished])
        write_lines(self.path / "steps.jsonl", [row for row in steps if row.unit in finished])
        return finished

    def failures(self) -> list[PromptRow]:
        """The rows that hold an error."""
        rows = read_lines(self.path / "prompts.jsonl", PromptRow)
        return [row for row in rows if row.error is not None]

    def finish(self, manifest: dict[str, Any]) -> None:
        """Write the tables, then say in the manifest that the run is finished."""
        samplings = {s["name"]: i for i, s in enumerate(manifest["samplings"])}
        rows = read_lines(self.path / "prompts.jsonl", PromptRow)
        orders = {(*row.unit, row.method): row.order for row in rows}
        steps = read_lines(self.path / "steps.jsonl", StepRow)

        def place(row: PromptRow | StepRow) -> tuple[int, int, int]:
            return row.prompt, samplings[row.sampling], orders[*row.unit, row.method]

        rows.sort(key=place)
        steps.sort(key=lambda row: (*place(row), row.step))
        for name, frame in (
            ("prompts", to_frame(rows, PromptRow)),
            ("steps", to_frame(steps, StepRow)),
        ):
            temporary = self.path / f"{name}.tmp"
            frame.write_parquet(temporary)
            temporary.replace(self.path / f"{name}.parquet")
        errors = sum(row.error is not None for row in rows)
        self.write_manifest(manifest | {"finished": now(), "errors": errors})
