"""A folder that one process at a time writes to; the base of run folders and sweep folders.

Its manifest marks it as ours: a folder that is missing or empty gets one before anything else is written,
and in any other folder without one nothing is written. Only files on a fixed list of names, or named by the
manifest, are ever deleted.
"""

import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from filelock import FileLock, Timeout

from treespec.errors import Unreadable
from treespec.experiments.config.files import require_one_line
from treespec.experiments.config.plugged import FOLDER, plugin_copies
from treespec.experiments.errors import DISK_FULL
from treespec.files import DATA_BYTES, parse_json, read_bytes, write_whole
from treespec.plugin_files import in_use

LOCK = ".lock"


class HeldFolder(ABC):
    """A folder with a manifest, locked while it is entered (`with ... as folder:`).

    A start that fails before it has written its manifest or measured anything removes the folder if it
    made it.
    """

    what: ClassVar[str]
    """What messages call such a folder."""
    manifest_name: ClassVar[str]
    marks: ClassVar[str]
    """A key of the manifest, null until the manifest is complete; with `folder_id` it marks the folder."""
    version: ClassVar[int]
    folders: ClassVar[tuple[str, ...]]
    """Folders in it that files are written to, inner ones first."""
    error: ClassVar[type[OSError]]
    foreign: ClassVar[type[OSError]]
    not_written: ClassVar[type[OSError]]
    elsewhere: ClassVar[str] = "choose another folder with --out"
    """The way out of a folder that cannot be used."""
    goes_on: ClassVar[str]
    """What stays after a failed write, and how to go on; `{remedy}` stands for how to make room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / LOCK, timeout=0)
        self._made: list[Path] | None = None
        """If the folder was empty on entering: itself and those above it that were made."""

    @abstractmethod
    def own_files(self) -> Iterable[Path]:
        """Files that are ours if they exist, without manifest and lock."""

    @abstractmethod
    def measured(self) -> bool:
        """Whether it holds measurements that are worth keeping although the start has failed."""

    @property
    def manifest_path(self) -> Path:
        return self.path / self.manifest_name

    def own_manifest(self) -> dict[str, Any]:
        """The manifest, not checked beyond its mark."""
        data = self._data()
        if self.manifest_path.is_symlink() or not {"folder_id", self.marks} <= data.keys():
            first = min(os.listdir(self.path), default="nothing") if self.path.is_dir() else "no"
            raise self.foreign(
                f"{self.path} holds files ({first}, ...) but is not a {self.what}: it has no "
                f"{self.manifest_name} of this treespec (folders of older versions can be read, not "
                f"written); {self.elsewhere}"
            )
        files = {path for file in self.own_files() for path in (file, *file.parents)}
        files |= {self.path / name for name in self.folders}
        for path in sorted(files - {self.path, *self.path.parents}):
            if path.is_symlink():
                raise self.foreign(
                    f"{path} is a link, which treespec does not make: move it away, or {self.elsewhere}"
                )
        return data

    def _data(self) -> dict[str, Any]:
        try:
            data = parse_json(read_bytes(self.manifest_path, DATA_BYTES), constants=True)
        except Unreadable:
            return {}
        return data if isinstance(data, dict) else {}

    def keep(self, path: Path, content: str | bytes) -> None:
        """Write a file of this folder atomically."""
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)

    def keep_manifest(self, data: dict[str, Any]) -> None:
        """Replace the manifest atomically. Once it is complete, nothing that this start made is removed."""
        own_id = {"folder_id": self.own_manifest()["folder_id"]}
        self.keep(self.manifest_path, json.dumps(data | own_id, indent=2, ensure_ascii=False))

    def _require_room_for_plugins(self) -> None:
        """Refuse a folder in which a file of the user's own would be replaced by a copy of a plug-in."""
        ours = plugin_copies(self.manifest_path)
        for file in in_use():
            path = self.path / FOLDER / file.path.name
            if path not in ours and path.exists() and path.read_bytes() != file.content:
                raise self.error(
                    f"{path} is not a copy of the plug-in {file.path}, and would be replaced by one: move "
                    f"it away, or {self.elsewhere}"
                )

    def keep_plugins(self) -> None:
        """Copy the plug-ins in use, which a resumed run or a worker loads."""
        for file in in_use():
            self.keep(self.path / FOLDER / file.path.name, file.content)

    def clear(self) -> None:
        """Delete our files and nothing else; the manifest, last, becomes that of a new folder."""
        with self._writing():
            self._remove(self.own_files())
        self._begin()

    def dissolve(self) -> None:
        """Delete our files, the manifest and the lock last."""
        with suppress(OSError):
            self._remove(self.own_files())
            self._remove([self.manifest_path, self.path / LOCK])

    def undo(self) -> None:
        if self._made is not None:
            self.dissolve()
            remove_empty(self._made)
            self._made = None

    def _begin(self) -> None:
        mark = {"schema_version": self.version, self.marks: None, "finished": None}
        self.keep(self.manifest_path, json.dumps(mark | {"folder_id": secrets.token_hex(16)}))

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if not path.is_symlink() and not path.parent.is_symlink() and path.is_file():
                path.unlink()
        remove_empty(self.path / name for name in self.folders)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of a write into one that names the folder and the way out."""
        try:
            yield
        except self.error:
            raise
        except OSError as error:
            full = error.errno in DISK_FULL or "No space left" in str(error)
            remedy = "free some space on its disk" if full else "make it writable"
            raise self.not_written(
                f"{self.path} cannot be written: {error.strerror or error}. "
                f"{self.goes_on.format(remedy=remedy)}"
            ) from None

    def __enter__(self) -> Self:
        require_one_line(self.path, self.error)
        missing = list(takewhile(lambda p: not os.path.lexists(p), (self.path, *self.path.parents)))
        try:
            if self.path.is_file():
                raise self.error(f"{self.path} is a file: {self.elsewhere}")
            if self.path.exists() and not _is_empty(self.path):
                self.own_manifest()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise self.error(
                f"{self.path} is being written by another process: wait for it, or {self.elsewhere}"
            ) from None
        except self.error:
            raise
        except OSError as error:
            remove_empty(missing)
            raise self.error(f"{self.path}: {error.strerror or error}") from None
        try:
            if _is_empty(self.path):
                self._made = missing
                self._begin()
            self.own_manifest()
            self._require_room_for_plugins()
            self._remove(temporaries(self.path, *self.folders))
        except BaseException:
            self.undo()
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what a failed start made, unless it is worth keeping, and release the lock."""
        try:
            new = error is not None and self._made is not None
            if new and self.own_manifest()[self.marks] is None and not self.measured():
                self.undo()
        finally:
            self._lock.release()


def temporaries(path: Path, *folders: str) -> list[Path]:
    """Incomplete files that killed processes left in a folder and in these folders inside it."""
    places = (path, *(path / folder for folder in folders))
    found = (file for place in places for file in place.glob(".treespec-*.tmp"))
    return [file for file in found if re.fullmatch(r"\.treespec-[0-9a-f]{16}\.tmp", file.name)]


def _is_empty(path: Path) -> bool:
    """Whether a folder holds nothing, or only what a start that was killed at once leaves."""
    names = set(os.listdir(path)) - {file.name for file in temporaries(path)}
    return not names or (names == {LOCK} and not (path / LOCK).stat().st_size)


def remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
