"""The mark of a folder: the file `.treespec`, which says that it is ours, and what we made in it.

It is written before anything else. A line is a JSON object:

    {"treespec": "run", "id": "<32 hex digits>", "version": 1}    the first; the manifest repeats the id
    {"made": "search/"}                                           we are about to make this file or folder
    {"made": "jobs/a/run/", "id": "<32 hex digits>"}              the same, of a folder with its own mark
    {"gone": "search/"}                                           we have removed it

Lines are only ever appended, and synced before the file is made that they name. So a kill leaves nothing
unnamed, at most a last line that is cut short and names nothing yet. What is not whole yet has a name that
holds the id, which nobody else can have given.
"""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treespec.errors import Unreadable
from treespec.reading import read_bytes
from treespec.whole_file import write_whole

__all__ = ["LOCK", "MARK", "VERSION", "Mark", "new_id"]

MARK, LOCK = ".treespec", ".lock"
VERSION = 1
"""Of the mark."""

LONGEST_HEAD = 200
LARGEST_MARK = 1 << 28
"""Bytes of a mark: a thousand times what the largest sweep needs."""


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
    """What a mark says.

    Args:
        folder: that it is in.
        kind: of the folder, by its name.
        id: of the folder.
        names: what is made in the folder, relative to it, with `/` between the parts; those of folders end
            with one. Folders that have a mark of their own have its id, all others None.
    """

    folder: Path
    kind: str
    id: str = ""
    names: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, kind: str, own_id: str) -> None:
        """Write the mark of a folder, whole or not at all. It names the lock.

        Raises:
            FileExistsError: if something has its name.
            OSError: if it cannot be written; nothing is left of it.
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
        none = f"{path} is no mark of treespec"
        if path.is_symlink() or not path.is_file():
            raise Unreadable(none)
        first, *lines = read_bytes(path, LARGEST_MARK).split(b"\n")
        try:
            head = _Head.model_validate_json(first[:LONGEST_HEAD])
        except ValidationError:
            raise Unreadable(none) from None
        if not lines:
            raise Unreadable(none)
        if head.version > VERSION:
            raise Unreadable(
                f"{path} has version {head.version}, but this treespec knows versions up to {VERSION}"
            )
        mark = cls(folder, head.treespec, head.id)
        for line in lines[:-1]:  # the last has no end: it was cut short
            mark._take(line)
        return mark

    def _take(self, line: bytes) -> None:
        try:
            said = _Line.model_validate_json(line)
        except ValidationError:  # cut short by a kill, and closed by the next line
            return
        if said.made is not None and _inside(said.made):
            self.names[said.made] = said.id
        if said.gone is not None:
            self.names.pop(said.gone, None)

    def say_made(self, names: Mapping[str, str | None]) -> None:
        """Write down names that are about to be made, and the ids of those that get marks of their own."""
        self._append(
            {"made": n} | ({} if own_id is None else {"id": own_id}) for n, own_id in names.items()
        )
        self.names |= names

    def say_gone(self, names: Iterable[str]) -> None:
        """Write down names that have been removed."""
        gone = list(names)
        self._append({"gone": name} for name in gone)
        for name in gone:
            self.names.pop(name, None)

    def _append(self, said: Iterable[Mapping[str, str]]) -> None:
        """Append lines and wait until the disk has them."""
        text = "".join(json.dumps(line) + "\n" for line in said).encode()
        if not text:
            return
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self.folder / MARK, flags), "r+b", buffering=0) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            if file.read(1) != b"\n":  # a line that was cut short must not become another name
                text = b"\n" + text
            left = memoryview(text)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    def temporary(self) -> Path:
        """A name for a file that is not whole yet: ours without a line, and nobody else's."""
        return self.folder / f"{self._temporaries}{secrets.token_hex(8)}.tmp"

    def temporaries(self) -> list[Path]:
        """The files that are not whole; none are being written if nobody else writes in the folder."""
        return list(self.folder.glob(f"{self._temporaries}*.tmp"))

    @property
    def _temporaries(self) -> str:
        return f"{MARK}-{self.id}-"


def new_id() -> str:
    """An id that no folder has."""
    return secrets.token_hex(16)


def _inside(name: str) -> bool:
    """Whether a name can only be that of something in the folder."""
    parts = name.removesuffix("/").split("/")
    return name != MARK and "\0" not in name and not {"", ".", ".."} & set(parts)
