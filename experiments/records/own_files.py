"""Our own files in a folder, as listed in its mark: what may be written, and what may be removed.

A name is listed in the mark before the file is made, and nothing is removed that is not listed. A listed
file that somebody has replaced by another file of the same name still counts as ours.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from treespec.errors import Unreadable
from treespec.experiments.records.mark import LOCK, MARK, Mark, new_id
from treespec.files import parse_json, read_bytes, write_whole

__all__ = ["Kind", "OwnFiles"]


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Args:
        name: its name in the mark.
        what: its name in messages.
        manifest: the file that repeats the mark's id, as `folder_id`.
        places: matches every file that is written in such a folder, except in inner folders.
        folders: the folders in it that files are written to.
        error: raised if the folder cannot be made, read or locked.
        foreign: raised if the folder, or a file where we write, is not ours.
        not_written: raised if a file cannot be written now.
        goes_on: its message about what stays and how to go on; `{remedy}` stands for how files can be
            written again.
        measurements: matches the beginning of files that hold expensive measurements, which a refused start
            leaves for the next.
        inner: kind of the folders in it that have marks of their own.
    """

    name: str
    what: str
    manifest: str
    places: re.Pattern[str]
    folders: tuple[str, ...]
    error: type[OSError]
    foreign: type[OSError]
    not_written: type[OSError]
    goes_on: str
    measurements: re.Pattern[str] = re.compile("(?!)")
    inner: "Kind | None" = None


class OwnFiles:
    """Our files in a folder; use `begin` or `opened` to make one. Names are as in `Mark.names`.

    Args:
        path: the folder.
        kind: the folder's kind.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self.mark = Mark(path, kind.name)
        self._ready: set[str] = set()
        self._began: set[str] = set()
        self._parents: list[Path] = []
        self._marked = False

    @property
    def id(self) -> str:
        """The folder's id."""
        return self.mark.id

    # -- whose folder -----------------------------------------------------------------------------

    @classmethod
    def begin(cls, path: Path, kind: Kind) -> "OwnFiles":
        """Make and mark a folder that is missing or empty, or open one that has our mark.

        Raises:
            OSError: `kind.foreign`, if the folder is not ours, before anything is written; `kind.error`, if
                it cannot be made or read.
        """
        files = cls(path, kind)
        try:
            files._make_folder()
            if not any(path.iterdir()):
                with suppress(FileExistsError):  # another process was faster
                    Mark.make(path, kind.name, new_id())
                    files._marked, files._began = True, {LOCK}
            files._open()
        except kind.error:
            files.undo()
            raise
        except OSError as error:
            files.undo()
            raise kind.error(f"{path}: {error.strerror or error}") from None
        return files

    @classmethod
    def opened(cls, path: Path, kind: Kind) -> "OwnFiles":
        """Open a folder that has our mark.

        Raises:
            OSError: `kind.foreign`, if it has none, or if a file that is not ours is where we write.
        """
        files = cls(path, kind)
        files._open()
        return files

    def load(self) -> None:
        """Read the mark, which lists the names that are ours now.

        Raises:
            OSError: `kind.foreign`, if it is not a mark of this kind.
        """
        try:
            mark = Mark.read(self.path)
        except Unreadable as problem:
            raise self.kind.foreign(
                f"{problem}, so nothing is written to {self.path}: choose another folder with --out"
            ) from None
        if mark.kind != self.kind.name:
            raise self.kind.foreign(
                f"{self.path} is not a {self.kind.what}, but another folder of treespec ({mark.kind}): "
                "choose another folder with --out"
            )
        self.mark = mark

    def _make_folder(self) -> None:
        """Make the folder, and the folders above it that are missing."""
        missing = self.path
        if missing.is_symlink() and not missing.exists():
            raise self.kind.error(f"{self.path} is a broken link: choose another folder with --out")
        while not os.path.lexists(missing):
            self._parents.append(missing)
            missing = missing.parent
        for folder in reversed(self._parents):
            folder.mkdir(exist_ok=True)
        if not self.path.is_dir():
            raise self.kind.error(f"{self.path} is a file: choose another folder with --out")

    def _open(self) -> None:
        """Read the mark; refuse a manifest of another folder, and foreign files where we write."""
        if not os.path.lexists(self.path / MARK):
            first = min((entry.name for entry in self.path.iterdir()), default="nothing")
            raise self.kind.foreign(
                f"{self.path} holds files ({first}, ...) but is not a {self.kind.what}: it has no file "
                f"{MARK} (folders of older versions lack it, and can be read but not written); choose "
                "another folder with --out"
            )
        self.load()
        self._require_own_manifest()
        folders = [f"{folder}/" for folder in self.kind.folders]
        self.require_free([*self.mark.names, *folders])
        names = (
            folder + name
            for folder in ("", *folders)
            if (self.path / folder).is_dir()
            for name in os.listdir(self.path / folder)
        )
        self.require_free(name for name in names if self.kind.places.fullmatch(name))

    def _require_own_manifest(self) -> None:
        path = self.path / self.kind.manifest
        if self.kind.manifest not in self.mark.names or not path.is_file():
            return
        with suppress(Unreadable):  # whoever reads a damaged manifest reports it
            data = parse_json(read_bytes(path), constants=True)
            if isinstance(data, dict) and data.get("folder_id") != self.id:
                raise self.kind.foreign(
                    f"{path} does not belong to this {self.kind.what}: its folder_id is not the id in "
                    f"{MARK} beside it; choose another folder with --out"
                )

    def require_free(self, names: Iterable[str]) -> None:
        """Refuse names that exist but were not made by us, or are no longer what we made.

        Raises:
            OSError: `kind.foreign`, naming the file or folder.
        """
        for name in _with_folders(names):
            path = self.path / name.rstrip("/")
            if not os.path.lexists(path):
                continue
            real_folder = path.is_dir() and not path.is_symlink()
            if name not in self.mark.names:
                # A folder of this name may exist: only its content matters.
                if not (name.endswith("/") and real_folder):
                    self._in_the_way(name, f"exists, but was not made by this {self.kind.what}")
            elif path.is_symlink():
                self._in_the_way(name, "is a link, which treespec does not make")
            elif real_folder != name.endswith("/"):
                self._in_the_way(name, "is a folder" if real_folder else "is not a folder")
            elif self.mark.names[name] is not None and any(path.iterdir()):
                with suppress(Unreadable):  # in a folder without a mark nothing would be removed
                    if Mark.read(path).id != self.mark.names[name]:
                        self._in_the_way(name, f"was not made by this {self.kind.what}")

    def _in_the_way(self, name: str, why: str) -> NoReturn:
        raise self.kind.foreign(
            f"{self.path / name} {why}: move it away, or choose another folder with --out"
        )

    # -- making -----------------------------------------------------------------------------------

    def claim(self, *names: str, ids: Mapping[str, str] | None = None) -> None:
        """List names that are about to be made, and make the folders that they are in.

        Args:
            names: the names.
            ids: the ids of those that are folders with marks of their own.

        Raises:
            OSError: `kind.foreign`, if a name is taken by something that is not ours; any other, if the
                mark or a folder cannot be written.
        """
        wanted = [name for name in _with_folders(names) if name not in self._ready]
        present = [name for name in wanted if os.path.lexists(self.path / name.rstrip("/"))]
        if any(name not in self.mark.names for name in present):
            self.load()  # `treespec report` may have made them meanwhile
        self.require_free(present)
        missing = [name for name in wanted if name not in present]
        self._list({name: (ids or {}).get(name) for name in missing})
        for name in missing:
            if name.endswith("/"):
                (self.path / name).mkdir(exist_ok=True)
        self._ready.update(wanted)

    def claim_inner(self, *names: str) -> None:
        """Claim folders of the kind `inner`, and mark them; their ids tell them from folders of others.

        Raises:
            OSError: see `claim`.
        """
        assert self.kind.inner is not None
        ids = {name: self.mark.names.get(name) or new_id() for name in names}
        self.claim(*names, ids=ids)
        for name, own_id in ids.items():
            if self.mark.names.get(name) == own_id and not any((self.path / name).iterdir()):
                Mark.make(self.path / name, self.kind.inner.name, own_id)

    def adopt(self, names: Iterable[str]) -> None:
        """List names that another program makes for us, and that are not known before it has run."""
        self._list(dict.fromkeys(n for n in _with_folders(names) if n not in self.mark.names))

    def _list(self, names: Mapping[str, str | None]) -> None:
        self.mark.say_made({n: own_id for n, own_id in names.items() if n not in self.mark.names})
        self._began.update(names)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file atomically.

        Returns:
            Its path.
        """
        self.claim(name)
        with suppress(
            FileNotFoundError
        ):  # another start has cleaned the temporary file away: try again
            return write_whole(self.path / name, content, temporary=self.mark.temporary())
        return write_whole(self.path / name, content, temporary=self.mark.temporary())

    # -- removing ---------------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove the incomplete files of killed processes."""
        for path in self.mark.temporaries():
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything that is listed, the manifest last. The mark and the lock stay.

        Raises:
            OSError: `kind.error`, before anything is removed, if another process is writing to an inner
                folder.
        """
        self.load()
        for name in self.mark.names:
            self._require_idle(name)
        self.remove(name for name in self.mark.names if name != LOCK)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of these files that are listed, and those of these folders that are then empty."""
        listed = self._in_order(name for name in names if name in self.mark.names)
        for name in listed:
            self._remove(name)
        gone = [name for name in listed if not os.path.lexists(self.path / name.rstrip("/"))]
        self.mark.say_gone(gone)
        self._ready.difference_update(gone)

    def undo(self) -> None:
        """Remove what was made since `begin`; if the mark was made then, also the mark and the folder."""
        with suppress(OSError):
            if self._marked:
                self._dissolve()
            else:
                self.remove(self._began)
        for folder in self._parents:
            with suppress(OSError):
                folder.rmdir()
        self.settle()

    def settle(self) -> None:
        """Keep what was made so far: `undo` no longer removes it."""
        self._began, self._parents, self._marked = set(), [], False

    @property
    def measured(self) -> bool:
        """Whether measurements that the next start can use were made since `begin`, and still exist."""
        made = filter(self.kind.measurements.match, self._began)
        return any(os.path.lexists(self.path / name) for name in made)

    @property
    def bare(self) -> bool:
        """Whether nothing but the mark and the lock was made since `begin`."""
        return self._began <= {LOCK}

    def _dissolve(self) -> None:
        """Remove all that is ours, the mark last; it is not written to, so this works on a full disk."""
        self.clean()
        for name in self._in_order(self.mark.names):
            self._remove(name)
        (self.path / MARK).unlink()

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """Sort names for removal: the content of a folder before the folder, manifest and lock last."""
        last = (self.kind.manifest, LOCK)
        return sorted(names, key=lambda n: (n not in last, n.count("/"), n), reverse=True)

    def _remove(self, name: str) -> None:
        """Remove a file or an empty folder, unless it is a link or lies behind one."""
        if any((self.path / part.rstrip("/")).is_symlink() for part in _with_folders([name])):
            return
        with suppress(OSError):
            if name.endswith("/"):
                if (inner := self._inner(name)) is not None:
                    inner._dissolve()
                (self.path / name).rmdir()
            else:
                (self.path / name).unlink()

    def _inner(self, name: str) -> "OwnFiles | None":
        """Open an inner folder; None if this is not one, or not the one that we made."""
        if self.kind.inner is None or self.mark.names[name] is None:
            return None
        with suppress(OSError):
            inner = OwnFiles.opened(self.path / name, self.kind.inner)
            return inner if inner.id == self.mark.names[name] else None
        return None

    def _require_idle(self, name: str) -> None:
        """Refuse an inner folder that another process is writing to."""
        inner = self._inner(name)
        if inner is None or not (inner.path / LOCK).exists():
            return
        try:
            with FileLock(inner.path / LOCK, timeout=0):
                pass
        except Timeout:
            raise self.kind.error(
                f"{inner.path} is being written by another process: wait for it, or stop it"
            ) from None


def _with_folders(names: Iterable[str]) -> list[str]:
    """These names and those of the folders that they are in, each once, folders first.

    Example:
        >>> _with_folders(["jobs/a/run/", "jobs/b/config.yaml"])
        ['jobs/', 'jobs/a/', 'jobs/a/run/', 'jobs/b/', 'jobs/b/config.yaml']
    """
    paths = (accumulate(re.findall("[^/]+/?", name)) for name in names)
    return list(dict.fromkeys(chain.from_iterable(paths)))
