"""A folder that one process writes at a time: what runs and sweeps share."""

import os
from abc import ABC
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from filelock import FileLock, Timeout

from treespec.errors import TreespecError
from treespec.experiments.errors import NotWritten
from treespec.experiments.records.mark import LOCK, MARK
from treespec.experiments.records.own_files import Kind, OwnFiles

__all__ = ["HeldFolder"]


class HeldFolder(ABC):
    """A folder with a manifest, held while it is entered (`with ... as folder:`).

    It is ours by its mark (`own_files`). A start that is refused before `settle`, and before anything was
    measured, takes back what it made: all of a new folder; in an older one what was not there before.

    Args:
        path: made if it does not exist.

    Raises:
        OSError: of the class `kind.error`, on entering: the path cannot be had, is not ours, or is held.
    """

    kind: ClassVar[Kind]
    """What the folder is."""
    writer: ClassVar[str]
    """Who else may hold it, in messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = OwnFiles(path, self.kind)
        self._lock = FileLock(path / LOCK, timeout=0)

    @property
    def manifest_path(self) -> Path:
        """Of the file that says what was started here."""
        return self.path / self.kind.manifest

    def _measured(self) -> bool:
        """Whether this start has made something that took long, and serves the next."""
        return False

    def settle(self) -> None:
        """What was made from the beginning stays, whatever comes: there are results in it now."""
        self.files.settle()

    def withdraw(self) -> None:
        """Take back what was made since the beginning: who only looked leaves nothing."""
        self.files.undo()

    def __enter__(self) -> Self:
        """Mark the folder if it is new, and take the lock."""
        self.files = OwnFiles.begin(self.path, self.kind)
        held = (
            f"{self.path} is being written by {self.writer}; wait for it, or give another folder with "
            "--out"
        )
        try:
            self._lock.acquire()
        except Timeout:
            raise self.kind.error(held) from None
        except OSError as error:
            self.files.undo()
            raise self.kind.error(f"{self.path}: {error.strerror or error}") from None
        try:
            before = self.files.id
            try:
                self.files.load()
            except self.kind.error:  # who held it until now has just taken it back
                self._leave_nothing()
                raise self.kind.error(held) from None
            if self.files.id != before:
                raise self.kind.error(held)
            self.files.clean()
        except OSError as error:
            self._lock.release()
            if isinstance(error, self.kind.error):
                raise
            raise self.kind.error(f"{self.path}: {error.strerror or error}") from None
        return self

    def _leave_nothing(self) -> None:
        """Remove the lock that was made in a folder which another process was just removing."""
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
        """Take back what a refused start made, and give the lock back."""
        refused = isinstance(error, TreespecError) and not isinstance(error, NotWritten)
        try:
            if error is not None and (self.files.bare or (refused and not self._measured())):
                self.files.undo()
        finally:
            self._lock.release()
