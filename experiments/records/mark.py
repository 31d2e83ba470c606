"""The mark of a folder: the file `.treespec`, which says that the folder is ours, and lists what we made.

It is written before anything else. Each line is a JSON object:

    {"treespec": "run", "id": "<32 hex digits>", "version": 1}    the first; the manifest repeats the id
    {"made": "search/"}                                           we are about to make this file or folder
    {"made": "jobs/a/run/", "id": "<32 hex digits>"}              the same, for a folder with its own mark
    {"gone": "search/"}                                           we have removed it

Lines are only ever appended, and are synced to disk before the file that they name is made. A kill
therefore leaves no file unlisted, and at most a truncated last line, whose file does not exist yet. An
incomplete file has a temporary name that contains the id, which nobody else uses.
"""

import json
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treespec.errors import Unreadable
from treespec.files import read_bytes, write_whole

__all__ = ["LOCK", "MARK", "VERSION", "Mark", "new_id"]

MARK, LOCK = ".treespec", ".lock"
VERSION = 1
"""Version of the mark's format."""

LONGEST_HEAD = 200
"""Most bytes of the first line."""

LARGEST_MARK = 1 << 28
"""Most bytes of a mark: a thousand times what the largest sweep needs."""


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    treespec: str
    id: str = Field(pattern="^[0-9a-f]{32}$")
    version: int


class _Line(BaseModel):
    model_config = ConfigDict(strict=True)

    made: str | None = None
    id: str | None = None
    gone: str | None = None


@dataclass
class Mark:
    """The content of a mark.

    Args:
        folder: the folder that it marks.
        kind: name of the folder's kind.
        id: the folder's id.
        names: paths of what we made, relative to the folder and with `/` as separator; paths of folders end
            with `/`. The value is the id of a folder that has a mark of its own, otherwise None.
    """

    folder: Path
    kind: str
    id: str = ""
    names: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, kind: str, own_id: str) -> None:
        """Write the mark of a folder atomically. It lists the lock.

        Raises:
            FileExistsError: if something of this name exists.
            OSError: if it cannot be written; then nothing is left of it.
        """
        head = {"treespec": kind, "id": own_id, "version": VERSION}
        lines = (json.dumps(line) + "\n" for line in (head, {"made": LOCK}))
        write_whole(folder / MARK, "".join(lines), new=True)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the mark of a folder.

        Raises:
            Unreadable: if it has none, or one of a newer version. The message begins with the path.
        """
        path = folder / MARK
        no_mark = f"{path} is not a mark of treespec"
        if path.is_symlink() or not path.is_file():
            raise Unreadable(no_mark)
        first, *lines = read_bytes(path, LARGEST_MARK).split(b"\n")
        if not lines:  # not even the first line is whole
            raise Unreadable(no_mark)
        try:
            head = _Head.model_validate_json(first[:LONGEST_HEAD])
        except ValidationError:
            raise Unreadable(no_mark) from None
        if head.version > VERSION:
            raise Unreadable(
                f"{path} has version {head.version}, but this treespec knows versions up to {VERSION}"
            )
        mark = cls(folder, head.treespec, head.id)
        for line in lines[:-1]:  # behind the last line end is nothing, or a truncated line
            try:
                entry = _Line.model_validate_json(line)
            except ValidationError:  # truncated by a kill; a later start ended the line
                continue
            if entry.made is not None and _inside(entry.made):
                mark.names[entry.made] = entry.id
            if entry.gone is not None:
                mark.names.pop(entry.gone, None)
        return mark

    def say_made(self, names: Mapping[str, str | None]) -> None:
        """List names that are about to be made, with the ids of folders that get marks of their own."""
        self._append(
            {"made": n} | ({} if own_id is None else {"id": own_id}) for n, own_id in names.items()
        )
        self.names |= names

    def say_gone(self, names: Collection[str]) -> None:
        """Record that these names have been removed."""
        self._append({"gone": name} for name in names)
        for name in names:
            self.names.pop(name, None)

    def _append(self, entries: Iterable[Mapping[str, str]]) -> None:
        """Append lines, and wait until they are on disk."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        if not text:
            return
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self.folder / MARK, flags), "r+b", buffering=0) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            if (
                file.read(1) != b"\n"
            ):  # end a truncated line, so that it does not merge with the next
                text = b"\n" + text
            left = memoryview(text)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    def temporary(self) -> Path:
        """A path for an incomplete file, recognisable as ours by the id although it is not listed."""
        return self.folder / f"{self._temporaries}{secrets.token_hex(8)}.tmp"

    def temporaries(self) -> list[Path]:
        """The incomplete files in the folder; leftovers, unless another process is writing them."""
        return list(self.folder.glob(f"{self._temporaries}*.tmp"))

    @property
    def _temporaries(self) -> str:
        return f"{MARK}-{self.id}-"


def new_id() -> str:
    """A new, random id."""
    return secrets.token_hex(16)


def _inside(name: str) -> bool:
    """Whether a name lies within the folder, and is not the mark itself."""
    outside = {"", ".", ".."}.intersection(name.removesuffix("/").split("/"))
    return name != MARK and "\0" not in name and not outside
