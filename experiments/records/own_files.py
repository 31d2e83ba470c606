"""Which files of a folder are ours: its mark says so, and names every file that we make before it is there.

The mark is the file `.treespec` at the root, written before anything else. A line is a JSON object:

    {"treespec": "run", "id": "<32 hex digits>", "version": 1}    the first; the manifest repeats the id
    {"made": "search/"}                                           we are about to make this file or folder
    {"gone": "search/"}                                           we have removed it

Lines are only ever appended, and synced before the file is made that they name. So a kill leaves nothing
unnamed, at most a last line that is cut short and names nothing yet. Nothing is removed that is not named.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

__all__ = ["LOCK", "MARK", "VERSION", "Kind", "OwnFiles", "temporary_of"]

MARK, LOCK = ".treespec", ".lock"
VERSION = 1
"""Of the mark."""

LONGEST_HEAD = 200
LARGEST = 1 << 28
"""Bytes of a mark: a thousand times what the largest sweep needs."""

_ID = re.compile(r"[0-9a-f]{32}")


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


def temporary_of(name: str) -> str:
    """Where a file is written before it gets its name: beside it."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.tmp"


class OwnFiles:
    """What is ours in a folder; see `begin` and `opened`.

    Names are relative to the folder, with `/` between their parts; those of folders end with one.

    Args:
        path: of the folder.
        kind: of it.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self.id = ""
        self.names: dict[str, None] = {}
        self._ready: set[str] = set()
        self._began: dict[str, None] = {}
        self._parents: list[Path] = []
        self._marked = False

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
            found = files._entries()
            if MARK not in found:
                if found:
                    raise kind.foreign(files._foreign_text(found))
                if not files._create():
                    files.load()
            else:
                files.load()
            files._require_ours()
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
        if not os.path.lexists(path / MARK):
            found = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
            raise kind.foreign(files._foreign_text(found or ["nothing"]))
        files.load()
        files._require_ours()
        return files

    def load(self) -> None:
        """Read the mark, and which names are ours now.

        Raises:
            OSError: if it is no mark of this kind.
        """
        path, kind = self.path / MARK, self.kind
        head, names = _parsed(_content(path) or b"")
        if head is None:
            raise kind.foreign(
                f"{path} is no mark of treespec, so {self.path} is no {kind.what}: give another folder "
                "with --out"
            )
        if head["version"] > VERSION:
            raise kind.foreign(
                f"{path} has version {head['version']}, but this treespec knows versions up to {VERSION}; "
                "go on with the newer treespec that wrote it, or give another folder with --out"
            )
        if head["treespec"] != kind.name:
            raise kind.foreign(
                f"{self.path} is no {kind.what}, but another folder of treespec ({head['treespec']}): give "
                "another folder with --out"
            )
        self.id, self.names = head["id"], names

    def _entries(self) -> set[str]:
        """What is in the folder, which is made if it is missing."""
        missing = self.path
        if missing.is_symlink() and not missing.exists():
            raise self.kind.error(
                f"{self.path} is a link that leads nowhere; give another with --out"
            )
        while not os.path.lexists(missing):
            self._parents.append(missing)
            missing = missing.parent
        if self._parents:
            for folder in reversed(self._parents):
                folder.mkdir(exist_ok=True)
        elif not self.path.is_dir():
            raise self.kind.error(f"{self.path} is a file; give another folder with --out")
        return {entry.name for entry in self.path.iterdir()}

    def _create(self) -> bool:
        """Make the mark, whole from the beginning; false if another process was faster."""
        self.id = secrets.token_hex(16)
        head = {"treespec": self.kind.name, "id": self.id, "version": VERSION}
        lines = "".join(json.dumps(line) + "\n" for line in (head, {"made": LOCK}))
        try:
            _make_whole(self.path / MARK, lines.encode())
        except FileExistsError:
            self._parents = []
            return False
        self._marked = True
        self.names = {LOCK: None}
        self._began = {LOCK: None}
        return True

    def _require_ours(self) -> None:
        """Refuse a folder whose manifest is another's, or in which others hold our places."""
        path, what = self.path / self.kind.manifest, self.kind.what
        if self.kind.manifest in self.names and path.is_file():
            data = _json(path.read_bytes())
            # A damaged one is told by who reads it.
            if data is not None and data.get("folder_id") != self.id:
                raise self.kind.foreign(
                    f"{path} does not belong to this {what}: its folder_id is not the id in {MARK} beside "
                    "it; give another folder with --out"
                )
        names = []
        for entry in os.scandir(self.path):
            if entry.name not in self.kind.folders:
                names.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                names += [f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path)]
            else:
                self._in_the_way(entry.name, f"is not the folder that this {what} makes")
        self.require_free(name for name in names if self.kind.places.fullmatch(name))
        for name in self.names:
            self._require_unchanged(name)

    def _require_unchanged(self, name: str) -> None:
        """Refuse a name of ours that others have given to a link, or to a folder instead of a file."""
        path = self.path / name.rstrip("/")
        if path.is_symlink():
            self._in_the_way(name, "is a link, which we do not make")
        if os.path.lexists(path) and path.is_dir() != name.endswith("/"):
            self._in_the_way(name, "is " + ("no folder" if name.endswith("/") else "a folder"))

    def _foreign_text(self, found: Iterable[str]) -> str:
        first = sorted(found)[0]
        return (
            f"{self.path} holds files ({first}, ...) but is no {self.kind.what}: it has no file {MARK} "
            "(nor has one of an older version, which can be read but not written); give another folder "
            "with --out"
        )

    def require_free(self, names: Iterable[str]) -> None:
        """Refuse names at which something is that we did not make.

        Raises:
            OSError: `kind.foreign`, naming it.
        """
        for name in dict.fromkeys(part for own in names for part in (*_folders_of(own), own)):
            path = self.path / name.rstrip("/")
            if name not in self.names and os.path.lexists(path):
                if name.endswith("/") and path.is_dir() and not path.is_symlink():
                    continue  # a folder may be there: only what is in it counts
                self._in_the_way(name, f"is there, but not made by this {self.kind.what}")

    def _in_the_way(self, name: str, why: str) -> None:
        raise self.kind.foreign(
            f"{self.path / name} {why}: move it away, or give another folder with --out"
        )

    # -- writing ----------------------------------------------------------------------------------

    def claim(self, *names: str) -> None:
        """Write down names that are about to be made, with those of their folders, which are made.

        Raises:
            OSError: `kind.foreign`, if something of others is there; any, if that cannot be written.
        """
        wanted = dict.fromkeys(
            part for name in names for part in (*_folders_of(name), name) if part not in self._ready
        )
        if not wanted:
            return
        there = [name for name in wanted if os.path.lexists(self.path / name.rstrip("/"))]
        if any(name not in self.names for name in there):
            self.load()  # `treespec report` may have made it beside us
        self.require_free(there)
        for name in there:
            self._require_unchanged(name)
        missing = [name for name in wanted if name not in there]
        self._say("made", [name for name in missing if name not in self.names])
        self._began |= dict.fromkeys(missing)
        for name in missing:
            if name.endswith("/"):
                (self.path / name).mkdir(exist_ok=True)
        self._ready |= set(wanted)

    def adopt(self, names: Iterable[str]) -> None:
        """Write down what others have just made, or will make, for us: it cannot be named before."""
        wanted = dict.fromkeys(part for name in names for part in (*_folders_of(name), name))
        new = [name for name in wanted if name not in self.names]
        self._say("made", new)
        self._began |= dict.fromkeys(new)

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file so that it is there whole or not at all.

        Returns:
            Its path.
        """
        path, temporary = self.path / name, self.path / temporary_of(name)
        self.claim(name, temporary_of(name))
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(path)

    # -- removing ---------------------------------------------------------------------------------

    def clean(self) -> None:
        """Remove what killed processes left unfinished."""
        left = [name for name in self.names if _is_temporary(name)]
        self.remove([name for name in left if os.path.lexists(self.path / name)])

    def clear(self) -> None:
        """Remove all that is named; the manifest goes last. The mark stays, and the lock.

        Raises:
            OSError: if another process writes in a folder of another kind in it, before anything is gone.
        """
        self.load()
        for name in self.names:
            self._require_idle(name)
        manifest = self.kind.manifest
        self.remove([name for name in self.names if name not in (LOCK, manifest)])
        self.remove([manifest])

    def remove(self, names: Iterable[str]) -> None:
        """Remove these files if they are named, and folders of these that are empty then."""
        known = [name for name in names if name in self.names]
        for name in sorted(known, key=lambda name: (name.count("/"), name), reverse=True):
            self._remove(name)
        gone = [name for name in known if not os.path.lexists(self.path / name.rstrip("/"))]
        self._say("gone", gone)
        self._ready -= set(gone)

    def undo(self) -> None:
        """Remove what was made since the beginning; if the mark was made then, that too, and the folder."""
        if self._began and not self._marked:
            with suppress(OSError):
                self.remove(list(self._began))
        elif self._marked:
            for name in sorted(self._began, key=lambda name: (name.count("/"), name), reverse=True):
                self._remove(name)
            with suppress(OSError):
                (self.path / MARK).unlink()
        self._began = {}
        for folder in self._parents:
            with suppress(OSError):
                folder.rmdir()

    @property
    def began(self) -> list[str]:
        """What was made since the beginning."""
        return [name for name in self._began if os.path.lexists(self.path / name.rstrip("/"))]

    @property
    def bare(self) -> bool:
        """Whether nothing was made since the beginning but mark and lock."""
        return set(self._began) <= {LOCK}

    def settle(self) -> None:
        """Let what was made be, whatever comes."""
        self._began, self._parents, self._marked = {}, [], False

    def _remove(self, name: str) -> None:
        """Remove one file or folder, unless it has become something else, or lies behind a link."""
        path = self.path / name.rstrip("/")
        with suppress(OSError):
            if any(os.path.islink(self.path / folder.rstrip("/")) for folder in _folders_of(name)):
                return
            mode = path.lstat().st_mode
            if not name.endswith("/"):
                if not stat.S_ISDIR(mode):
                    path.unlink()
            elif stat.S_ISDIR(mode):
                inner = self._inner(name)
                if inner is not None:
                    inner.clear()
                    inner._marked, inner._began = True, {LOCK: None}
                    inner.undo()
                path.rmdir()

    def _inner(self, name: str) -> "OwnFiles | None":
        """The folder of another kind that this one is."""
        path = self.path / name
        if self.kind.inner is None or not name.endswith("/") or not os.path.lexists(path / MARK):
            return None
        with suppress(OSError):
            return OwnFiles.opened(path, self.kind.inner)
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

    def _say(self, what: str, names: list[str]) -> None:
        """Append lines to the mark and wait until the disk has them."""
        if not names:
            return
        text = "".join(json.dumps({what: name}) + "\n" for name in names).encode()
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path / MARK, flags)
        with open(descriptor, "r+b", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            file.seek(max(size - 1, 0))
            if file.read(1) != b"\n":  # a line that was cut short must not become another name
                text = b"\n" + text
            left = memoryview(text)
            while left:
                left = left[file.write(left) :]
            os.fsync(descriptor)
        for name in names:
            if what == "made":
                self.names[name] = None
            else:
                self.names.pop(name, None)


def _make_whole(path: Path, content: bytes) -> None:
    """Make a file that is there whole or not at all; a kill leaves nothing of it.

    It has no name until it is whole. Where the system knows no such files it is written in place: what a
    kill leaves then is no mark, and is refused.

    Raises:
        FileExistsError: if there is something.
    """
    try:
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o666)
        with _filled(descriptor, content):
            # With a folder's descriptor, because Python follows links only then.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    except FileExistsError:
        raise
    except (AttributeError, OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with _filled(descriptor, content):
                pass
        except OSError:
            path.unlink()
            raise


@contextmanager
def _filled(descriptor: int, content: bytes) -> Iterator[None]:
    with open(descriptor, "wb", buffering=0) as file:
        file.write(content)
        os.fsync(descriptor)
        yield


def _content(path: Path) -> bytes | None:
    """Of a mark; None if it is no ordinary file of its size."""
    flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOENT, errno.ENXIO):
            return None
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        return file.read()


def _parsed(content: bytes) -> tuple[dict[str, Any] | None, dict[str, None]]:
    """The first line, None if it is not ours, and the names that are there."""
    first, *lines = content.split(b"\n")
    head = _json(first) if lines and len(first) <= LONGEST_HEAD else None
    if (
        head is None
        or set(head) != {"treespec", "id", "version"}
        or not isinstance(head["treespec"], str)
        or not isinstance(head["id"], str)
        or not _ID.fullmatch(head["id"])
        or type(head["version"]) is not int
    ):
        return None, {}
    names: dict[str, None] = {}
    for line in lines[:-1]:  # the last has no end: it was cut short
        said = _json(line) or {}
        made, gone = said.get("made"), said.get("gone")
        if isinstance(made, str) and _inside(made):
            names[made] = None
        if isinstance(gone, str):
            names.pop(gone, None)
    return head, names


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _inside(name: str) -> bool:
    """Whether a name can only be that of something in the folder."""
    parts = name.removesuffix("/").split("/")
    return name != MARK and "\0" not in name and not {"", ".", ".."} & set(parts)


def _folders_of(name: str) -> list[str]:
    parts = name.removesuffix("/").split("/")
    return ["/".join(parts[:i]) + "/" for i in range(1, len(parts))]


def _is_temporary(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith(".") and last.endswith(".tmp")
