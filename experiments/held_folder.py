"""A folder that one process writes at a time: what runs and sweeps share."""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from filelock import FileLock, Timeout

__all__ = ["HeldFolder"]


class HeldFolder(ABC):
    """A folder with a manifest, held while it is entered (`with ... as folder:`).

    Args:
        path: made if it does not exist.

    Raises:
        OSError: of the class `error`, on entering: the path cannot be had, holds other files, or is held.
    """

    error: ClassVar[type[OSError]]
    """What is raised, a `TreespecError`."""
    kind: ClassVar[str]
    """What the folder is, in messages."""
    writer: ClassVar[str]
    """Who else may hold it, in messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)

    @property
    @abstractmethod
    def manifest_path(self) -> Path:
        """The file by which such a folder is known."""

    @abstractmethod
    def _foreign(self, name: str) -> bool:
        """Whether a file of this name is none of ours."""

    def __enter__(self) -> Self:
        """Take the lock."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            found = sorted(entry.name for entry in self.path.iterdir())
        except FileExistsError:
            raise self.error(f"{self.path} is a file; give another folder with --out") from None
        except OSError as error:
            raise self.error(f"{self.path}: {error.strerror or error}") from None
        others = [name for name in found if self._foreign(name)]
        if others and not self.manifest_path.exists():
            raise self.error(
                f"{self.path} holds files ({others[0]}, ...) but is no {self.kind}: give another with --out"
            )
        try:
            self._lock.acquire()
        except Timeout:
            raise self.error(
                f"{self.path} is being written by {self.writer}; wait for it, or give another folder with "
                "--out"
            ) from None
        except OSError as error:
            raise self.error(f"{self.path}: {error.strerror or error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back."""
        self._lock.release()
