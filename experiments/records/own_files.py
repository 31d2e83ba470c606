"""What is ours in a folder, by its mark: which names are free, what is made, and what may be removed.

A name is written down in the mark before the file is made, and nothing is removed that is not in it. A
listed file that somebody has replaced by another file of the same name still counts as ours.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout

from treespec.errors import Unreadable
from treespec.experiments.records.mark import LOCK, MARK, Mark, new_id
from treespec.reading import parse_json, read_bytes
from treespec.whole_file import write_whole

__all__ = ["Kind", "OwnFiles"]


@dataclass(frozen=True)
class Kind:
    """A kind of folder.

    Args:
        name: in the mark.
        what: in messages.
        manifest: the file that repeats the mark's id, as `folder_id`.
        places: matches every file that is written in such a folder, but for what another kind writes in it.
        folders: that files are written in.
        error: what is raised when something cannot be written.
        foreign: what is raised when the folder, or a file in the way, is not ours.
        inner: kind of the folders in it that have marks of their own.
    """

    name: str
    what: str
    manifest: str
    places: re.Pattern[str]
    folders: tuple[str, ...]
    error: type[OSError]
    foreign: type[OSError]
    inner: "Kind | None" = None


class OwnFiles:
    """What is ours in a folder; see `begin` and `opened`. Names are those of `Mark`.

    Args:
        path: of the folder.
        kind: of it.
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
        """Of the folder."""
        return self.mark.id

    # -- whose folder -----------------------------------------------------------------------------

    @classmethod
    def begin(cls, path: Path, kind: Kind) -> "OwnFiles":
        """Mark a folder that is empty or missing, or take up one that has our mark.

        Raises:
            OSError: `kind.foreign`, if it is none of ours, before anything is written; `kind.error`, if it
                cannot be had.
        """
        files = cls(path, kind)
        try:
            files._make_folder()
            if not any(path.iterdir()):
                with suppress(FileExistsError):  # another process was faster
                    Mark.make(path, kind.name, new_id())
                    files._marked, files._began = True, {LOCK}
            files._take_up()
        except kind.error:
            files.undo()
            raise
        except OSError as error:
            files.undo()
            raise kind.error(f"{path}: {error.strerror or error}") from None
        return files

    @classmethod
    def opened(cls, path: Path, kind: Kind) -> "OwnFiles":
        """Take up a folder that has our mark.

        Raises:
            OSError: `kind.foreign`, if it has none, or something of others is where we write.
        """
        files = cls(path, kind)
        files._take_up()
        return files

    def load(self) -> None:
        """Read the mark, and which names are ours now.

        Raises:
            OSError: if it is no mark of this kind.
        """
        try:
            mark = Mark.read(self.path)
        except Unreadable as problem:
            raise self.kind.foreign(
                f"{problem}, so {self.path} is not written: give another folder with --out"
            ) from None
        if mark.kind != self.kind.name:
            raise self.kind.foreign(
                f"{self.path} is not a {self.kind.what}, but another folder of treespec ({mark.kind}): "
                "give another folder with --out"
            )
        self.mark = mark

    def _make_folder(self) -> None:
        """Make the folder and those above it, as far as they are missing."""
        missing = self.path
        if missing.is_symlink() and not missing.exists():
            raise self.kind.error(
                f"{self.path} is a link that leads nowhere; give another with --out"
            )
        while not os.path.lexists(missing):
            self._parents.append(missing)
            missing = missing.parent
        for folder in reversed(self._parents):
            folder.mkdir(exist_ok=True)
        if not self.path.is_dir():
            raise self.kind.error(f"{self.path} is a file; give another folder with --out")

    def _take_up(self) -> None:
        """Read the mark; refuse a manifest of another folder, and files of others where we write."""
        if not os.path.lexists(self.path / MARK):
            first = min((entry.name for entry in self.path.iterdir()), default="nothing")
            raise self.kind.foreign(
                f"{self.path} holds files ({first}, ...) but is not a {self.kind.what}: it has no file "
                f"{MARK} (nor has one of an older version, which can be read but not written); give "
                "another folder with --out"
            )
        self.load()
        self._require_own_manifest()
        folders = [f"{folder}/" for folder in self.kind.folders]
        self.require_free([*self.mark.names, *folders])
        there = [folder for folder in ("", *folders) if (self.path / folder).is_dir()]
        inside = [folder + name for folder in there for name in os.listdir(self.path / folder)]
        self.require_free(name for name in inside if self.kind.places.fullmatch(name))

    def _require_own_manifest(self) -> None:
        path = self.path / self.kind.manifest
        if self.kind.manifest not in self.mark.names or not path.is_file():
            return
        with suppress(Unreadable):  # a damaged one is told by who reads it
            data = parse_json(read_bytes(path), constants=True)
            if isinstance(data, dict) and data.get("folder_id") != self.id:
                raise self.kind.foreign(
                    f"{path} does not belong to this {self.kind.what}: its folder_id is not the id in "
                    f"{MARK} beside it; give another folder with --out"
                )

    def require_free(self, names: Iterable[str]) -> None:
        """Refuse names at which something is that we did not make, or that is no longer what we made.

        Raises:
            OSError: `kind.foreign`, naming it.
        """
        for name in _with_folders(names):
            path = self.path / name.rstrip("/")
            if not os.path.lexists(path):
                continue
            real_folder = path.is_dir() and not path.is_symlink()
            if name not in self.mark.names:
                # A folder may be there: only what is in it counts.
                if not (name.endswith("/") and real_folder):
                    self._in_the_way(name, f"is there, but not made by this {self.kind.what}")
            elif path.is_symlink():
                self._in_the_way(name, "is a link, which we do not make")
            elif real_folder != name.endswith("/"):
                self._in_the_way(name, "is a folder" if real_folder else "is no folder")
            elif self.mark.names[name] is not None and any(path.iterdir()):
                self._require_own_inner(name)

    def _require_own_inner(self, name: str) -> None:
        with suppress(Unreadable):  # without a mark it has nothing that would be removed
            if Mark.read(self.path / name).id != self.mark.names[name]:
                self._in_the_way(name, f"was not made by this {self.kind.what}")

    def _in_the_way(self, name: str, why: str) -> NoReturn:
        raise self.kind.foreign(
            f"{self.path / name} {why}: move it away, or give another folder with --out"
        )

    # -- making -----------------------------------------------------------------------------------

    def claim(self, *names: str) -> None:
        """Write down names that are about to be made, with those of their folders, which are made.

        Raises:
            OSError: `kind.foreign`, if something of others is there; any, if that cannot be written.
        """
        self._claim(dict.fromkeys(names))

    def claim_inner(self, *names: str) -> None:
        """Claim folders of the kind `inner`, and mark them: by the ids we tell them from those of others.

        Raises:
            OSError: as `claim`.
        """
        assert self.kind.inner is not None
        ids = {name: self.mark.names.get(name) or new_id() for name in names}
        self._claim(ids)
        for name, own_id in ids.items():
            if self.mark.names.get(name) == own_id and not any((self.path / name).iterdir()):
                Mark.make(self.path / name, self.kind.inner.name, own_id)

    def _claim(self, names: Mapping[str, str | None]) -> None:
        wanted = [name for name in _with_folders(names) if name not in self._ready]
        there = [name for name in wanted if os.path.lexists(self.path / name.rstrip("/"))]
        if any(name not in self.mark.names for name in there):
            self.load()  # `treespec report` may have made it beside us
        self.require_free(there)
        missing = [name for name in wanted if name not in there]
        self._note({name: names.get(name) for name in missing})
        for name in missing:
            if name.endswith("/"):
                (self.path / name).mkdir(exist_ok=True)
        self._ready.update(wanted)

    def adopt(self, names: Iterable[str]) -> None:
        """Write down what others have just made, or will make, for us: it cannot be named before."""
        self._note(dict.fromkeys(n for n in _with_folders(names) if n not in self.mark.names))

    def _note(self, names: Mapping[str, str | None]) -> None:
        known = self.mark.names
        self.mark.say_made({name: own_id for name, own_id in names.items() if name not in known})
        self._began.update(names)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file so that it is there whole or not at all.

        Returns:
            Its path.
        """
        self.claim(name)
        with suppress(FileNotFoundError):  # a start beside us took it for a killed process's
            return write_whole(self.path / name, content, temporary=self.mark.temporary())
        return write_whole(self.path / name, content, temporary=self.mark.temporary())

    # -- removing ---------------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove what killed processes left unfinished."""
        for path in self.mark.temporaries():
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all that is named; the manifest goes last. The mark stays, and the lock.

        Raises:
            OSError: if another process writes in a folder of another kind in it, before anything is gone.
        """
        self.load()
        for name in self.mark.names:
            self._require_idle(name)
        self.remove(name for name in self.mark.names if name != LOCK)

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files if they are named, and folders of these that are empty then."""
        known = self._in_order(name for name in names if name in self.mark.names)
        for name in known:
            self._remove(name)
        gone = [name for name in known if not os.path.lexists(self.path / name.rstrip("/"))]
        self.mark.say_gone(gone)
        self._ready.difference_update(gone)

    def undo(self) -> None:
        """Remove what was made since the beginning; if the mark was made then, that too, and the folder."""
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
        """Let what was made be, whatever comes."""
        self._began, self._parents, self._marked = set(), [], False

    @property
    def began(self) -> list[str]:
        """What was made since the beginning."""
        return [name for name in self._began if os.path.lexists(self.path / name.rstrip("/"))]

    @property
    def bare(self) -> bool:
        """Whether nothing was made since the beginning but mark and lock."""
        return self._began <= {LOCK}

    def _dissolve(self) -> None:
        """Remove all that is ours, the mark last; no line is added to it, so a full disk is no matter."""
        self.clean()
        for name in self._in_order(self.mark.names):
            self._remove(name)
        (self.path / MARK).unlink()

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """What is in a folder before the folder; manifest and lock last."""
        last = (self.kind.manifest, LOCK)
        return sorted(names, key=lambda n: (n not in last, n.count("/"), n), reverse=True)

    def _remove(self, name: str) -> None:
        """Remove one file or folder, unless it has become something else, or lies behind a link."""
        if any((self.path / part.rstrip("/")).is_symlink() for part in _with_folders([name])):
            return
        with suppress(OSError):
            if not name.endswith("/"):
                (self.path / name).unlink()
                return
            inner = self._inner(name)
            if inner is not None:
                inner._dissolve()
            (self.path / name).rmdir()

    def _inner(self, name: str) -> "OwnFiles | None":
        """The folder of another kind that this one is; None if it is none, or not the one that we made."""
        if self.kind.inner is None or self.mark.names[name] is None:
            return None
        with suppress(OSError):
            inner = OwnFiles.opened(self.path / name, self.kind.inner)
            return inner if inner.id == self.mark.names[name] else None
        return None

    def _require_idle(self, name: str) -> None:
        inner = self._inner(name)
        if inner is None or not (inner.path / LOCK).exists():
            return
        try:
            with FileLock(inner.path / LOCK, timeout=0):
                pass
        except Timeout:
            raise self.kind.error(
                f"{inner.path} is being written by another process: wait for it, or end it"
            ) from None


def _with_folders(names: Iterable[str]) -> list[str]:
    """Names and those of the folders that they are in, each once, folders first."""
    listed: dict[str, None] = {}
    for name in names:
        parts = name.removesuffix("/").split("/")
        listed |= dict.fromkeys("/".join(parts[:i]) + "/" for i in range(1, len(parts)))
        listed[name] = None
    return list(listed)
