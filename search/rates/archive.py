"""Read the untrusted archives of plain arrays (.npz) that traces are stored in.

Names, types and sizes of all members are checked before any is read, and pickles are never loaded.
"""

import lzma
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from treespec.errors import Unreadable
from treespec.reading import brief, open_file
from treespec.search.errors import InvalidTrace

__all__ = ["LARGEST_FILE", "read_arrays"]

LARGEST_FILE = 1 << 27
"""Limit on the bytes of a file, packed and unpacked: a million positions of eight children take 72 MB."""

LONGEST_DIRECTORY = 1 << 12
"""Limit on the bytes of an archive's directory, which is read at once; that of a trace takes 400."""

_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError,
    RuntimeError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def read_arrays(path: Path, known: Sequence[Mapping[str, str]]) -> dict[str, np.ndarray]:
    """Read the arrays of a trace's file, by name.

    Args:
        path: path of the file.
        known: sets of arrays that a file may consist of: the type of each, by name. Messages name the
            first set.

    Raises:
        InvalidTrace: if the file is missing, damaged, or not an archive of one of these sets.
    """
    try:
        with open_file(path, LARGEST_FILE) as file:
            _require_directory(file, path)
            with zipfile.ZipFile(file) as archive:
                return _read(archive, path, known)
    except InvalidTrace:
        raise
    except Unreadable as error:
        raise InvalidTrace(str(error)) from None
    except OSError as error:
        raise InvalidTrace(f"{path}: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise InvalidTrace(f"{path} is not a trace: {error}") from None


def _require_directory(file: BinaryIO, path: Path) -> None:
    """Refuse an archive that does not end as numpy writes it, or whose directory is too long."""
    start = file.seek(max(0, file.seek(0, os.SEEK_END) - 42))
    end = file.read()
    file.seek(start)
    if end[-22:-18] != b"PK\5\6" or end[-2:] != b"\0\0" or end[:4] == b"PK\6\7":
        raise InvalidTrace(f"{path} is not a trace: it does not end as an .npz archive does")
    if int.from_bytes(end[-10:-6], "little") > LONGEST_DIRECTORY:
        raise InvalidTrace(f"{path} is not a trace: its list of members is too long")


def _read(
    archive: zipfile.ZipFile, path: Path, known: Sequence[Mapping[str, str]]
) -> dict[str, np.ndarray]:
    members = archive.infolist()
    names = sorted(member.filename for member in members)
    kinds = next((set_ for set_ in known if sorted(f"{name}.npy" for name in set_) == names), None)
    if kinds is None:
        raise InvalidTrace(
            f"{path} is not a trace: it holds {', '.join(names[:8])[:200] or 'nothing'} instead of "
            f"{', '.join(known[0])}"
        )
    size = sum(member.file_size for member in members)
    if size > LARGEST_FILE:
        raise InvalidTrace(
            f"{path} unpacks to {size} bytes, more than the {LARGEST_FILE} of a trace"
        )
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            arrays[name] = _member(file, name, kinds[name], member.file_size, path)
    return arrays


def _member(file: IO[bytes], name: str, kind: str, size: int, path: Path) -> np.ndarray:
    """Read one member, after checking its header against its size and its expected type."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise InvalidTrace(f"{path}: {name} is in version {version} of numpy's format, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.dtype(kind) or fortran:
        raise InvalidTrace(f"{path}: {name} holds {dtype} instead of {kind}")
    wanted = math.prod(shape) * dtype.itemsize
    data = file.read(min(wanted, size) + 1)
    if len(data) != wanted:
        raise InvalidTrace(
            f"{path}: {name} has shape {brief(list(shape))} by its header, but another length"
        )
    return np.frombuffer(data, dtype).reshape(shape)
