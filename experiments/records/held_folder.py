"""A folder that one process at a time writes to; the base of run folders and sweep folders."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from filelock import FileLock, Timeout

from treespec.errors import TreespecError
from treespec.experiments.errors import DISK_FULL, NotWritten
from treespec.experiments.records.mark import LOCK, MARK
from treespec.experiments.records.own_files import Kind, OwnFiles

__all__ = ["HeldFolder"]


class HeldFolder:
    """A folder with a manifest, locked while it is entered (`with ... as folder:`).

    Its mark says that it is ours (`own_files`). A start that is refused before `files.settle`, and before
    it has measured anything, removes what it made: a new folder entirely, in an existing one what it added.

    Args:
        path: the folder; made if it does not exist.

    Raises:
        OSError: `kind.error`, on entering, if the folder cannot be made or read, is not ours, or is locked.
    """

    kind: ClassVar[Kind]
    """The kind of folder."""
    writer: ClassVar[str]
    """What messages call the other process that may hold the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = OwnFiles(path, self.kind)
        self._lock = FileLock(path / LOCK, timeout=0)

    @property
    def manifest_path(self) -> Path:
        """Path of the manifest."""
        return self.path / self.kind.manifest

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of a write into one that names the folder and the way out."""
        try:
            yield
        except self.kind.error:
            raise
        except OSError as error:
            full = error.errno in DISK_FULL or "No space left" in str(error)
            remedy = "free some space on its disk" if full else "make it writable"
            raise self.kind.not_written(
                f"{self.path} cannot be written: {error.strerror or error}. "
                f"{self.kind.goes_on.format(remedy=remedy)}"
            ) from None

    def keep(self, path: Path, content: str | bytes) -> None:
        """Write a file of this folder atomically.

        Raises:
            OSError: `kind.error`, if it cannot be written. Finished results stay.
        """
        with self._writing():
            self.files.write(path.relative_to(self.path).as_posix(), content)

    def clear(self) -> None:
        """Delete what the folder's mark lists, and those of inner folders, and nothing else.

        The manifest goes last.

        Raises:
            OSError: `kind.error`, before anything is deleted, if another process writes to an inner folder.
        """
        with self._writing():
            self.files.clear()

    def __enter__(self) -> Self:
        """Mark the folder if it is new, and take the lock."""
        self.files = OwnFiles.begin(self.path, self.kind)
        in_use = (
            f"{self.path} is being written by {self.writer}: wait for it, or choose another folder with "
            "--out"
        )
        try:
            self._lock.acquire()
        except Timeout:
            raise self.kind.error(in_use) from None
        except OSError as error:
            self.files.undo()
            raise self.kind.error(f"{self.path}: {error.strerror or error}") from None
        try:
            before = self.files.id
            try:
                self.files.load()
            except self.kind.error:  # the process that held the lock has just removed the folder
                self._leave_nothing()
                raise self.kind.error(in_use) from None
            if self.files.id != before:
                raise self.kind.error(in_use)
            self.files.clean()
        except OSError as error:
            self._lock.release()
            if isinstance(error, self.kind.error):
                raise
            raise self.kind.error(f"{self.path}: {error.strerror or error}") from None
        return self

    def _leave_nothing(self) -> None:
        """Remove the lock that was made in a folder while another process was removing the folder."""
        if not os.path.lexists(self.path / MARK):
            with suppress(OSError):
                (self.path / LOCK).unlink()
                self.path.rmdir()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what a refused start made, and release the lock."""
        refused = isinstance(error, TreespecError) and not isinstance(error, NotWritten)
        try:
            if error is not None and (self.files.bare or (refused and not self.files.measured)):
                self.files.undo()
        finally:
            self._lock.release()
