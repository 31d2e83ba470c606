"""Traces as files: an .npz archive of plain arrays, with the metadata as JSON among them.

    offsets, tokens, ranks, probs, accepted, kept    as in `Trace`; probabilities in float32
    meta                                             uint8, UTF-8 JSON: version, law, rule, sampling, width,
                                                     forced, about

Files come from anywhere: names, types and sizes of all members are checked before one is read, and no
pickle is ever opened.
"""

import io
import json
import lzma
import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from treespec.errors import Unreadable
from treespec.reading import brief, open_file, parse_json
from treespec.search.errors import InvalidTrace
from treespec.search.rates.trace import Trace
from treespec.search.whole_file import write_whole

__all__ = ["VERSION", "load", "pack", "save"]

VERSION = 1
LARGEST = 1 << 27
"""Bytes of a file, packed and unpacked: a million positions of eight children take 72 MB."""

LONGEST_DIRECTORY = 1 << 12
"""Bytes of an archive's list of its members, which is read as a whole; ours takes 400."""

_ARRAYS = {
    "offsets": "<i8", "tokens": "<i4", "ranks": "<i4", "probs": "<f4", "accepted": "<f4",
    "kept": "<i8", "meta": "|u1",
}  # fmt: skip
_META = {
    "version": int, "law": str, "rule": str, "sampling": dict, "width": int, "forced": bool,
    "about": dict,
}  # fmt: skip


_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError,
    RuntimeError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def save(trace: Trace, path: Path) -> Path:
    """Write a trace; a file that is there is replaced once the new one is whole.

    Args:
        trace: what to write; probabilities are rounded to float32.
        path: the file, which should end with .npz.

    Raises:
        InvalidTrace: if `about` or `sampling` is no plain data, or the path cannot be written.
    """
    content = pack(trace)
    try:
        return write_whole(path, content)
    except OSError as error:
        raise InvalidTrace(f"{path} cannot be written: {error.strerror}") from None


def pack(trace: Trace) -> bytes:
    """The content of a trace's file.

    Raises:
        InvalidTrace: if `about` or `sampling` is no plain data.
    """
    meta = {"version": VERSION} | {
        name: dict(value) if kind is dict else value
        for name, kind in _META.items()
        if name != "version" and (value := getattr(trace, name)) is not None
    }
    try:
        text = json.dumps(meta, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidTrace(f"sampling and about must be plain data: {error}") from None
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(getattr(trace, name), dtype=kind)
        for name, kind in _ARRAYS.items()
        if name != "meta"
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.frombuffer(text, np.uint8), **arrays)
    return buffer.getvalue()


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InvalidTrace: if the file is missing, no trace, damaged, or of a newer version.
    """
    try:
        with open_file(path, LARGEST) as file:
            _require_directory(file, path)
            with zipfile.ZipFile(file) as archive:
                arrays = _read(archive, path)
    except InvalidTrace:
        raise
    except Unreadable as error:
        raise InvalidTrace(str(error)) from None
    except OSError as error:
        raise InvalidTrace(f"{path}: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise InvalidTrace(f"{path} is no trace: {error}") from None
    meta = _meta(arrays.pop("meta").tobytes(), path)
    try:
        return Trace(**(arrays | meta))
    except InvalidTrace as error:
        raise InvalidTrace(f"{path}: {error}") from None


def _require_directory(file: BinaryIO, path: Path) -> None:
    """Refuse an archive whose end is not as numpy writes it, or whose list of members is too long."""
    start = file.seek(max(0, file.seek(0, os.SEEK_END) - 42))
    end = file.read()
    file.seek(start)
    if end[-22:-18] != b"PK\5\6" or end[-2:] != b"\0\0" or end[:4] == b"PK\6\7":
        raise InvalidTrace(f"{path} is no trace: it does not end as an .npz archive does")
    if int.from_bytes(end[-10:-6], "little") > LONGEST_DIRECTORY:
        raise InvalidTrace(f"{path} is no trace: it has more or other members than one")


def _read(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    members = archive.infolist()
    names = sorted(member.filename for member in members)
    if names != sorted(f"{name}.npy" for name in _ARRAYS):
        raise InvalidTrace(
            f"{path} is no trace: it holds {', '.join(names[:8])[:200] or 'nothing'} instead of "
            f"{', '.join(_ARRAYS)}"
        )
    size = sum(member.file_size for member in members)
    if size > LARGEST:
        raise InvalidTrace(f"{path} unpacks to {size} bytes, more than the {LARGEST} of a trace")
    arrays: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            arrays[name] = _array(file, name, member.file_size, path)
    return arrays


def _array(file: IO[bytes], name: str, size: int, path: Path) -> np.ndarray:
    """One member; its header is held against its size and what it must be before memory is taken."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise InvalidTrace(f"{path}: {name} is in version {version} of numpy's format, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.dtype(_ARRAYS[name]) or fortran:
        raise InvalidTrace(f"{path}: {name} holds {dtype} instead of {_ARRAYS[name]}")
    wanted = math.prod(shape) * dtype.itemsize
    data = file.read(min(wanted, size) + 1)
    if len(data) != wanted:
        raise InvalidTrace(
            f"{path}: {name} says it has shape {brief(list(shape))}, but is not so long"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _meta(text: bytes, path: Path) -> dict[str, Any]:
    try:
        meta = parse_json(text)
    except Unreadable as error:
        raise InvalidTrace(f"{path}: its metadata is not JSON: {error}") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("version"), int):
        raise InvalidTrace(f"{path}: its metadata has no version")
    if meta["version"] > VERSION:
        raise InvalidTrace(
            f"{path} has version {brief(meta['version'], 40)}, but this treespec reads versions up to "
            f"{VERSION}: read it with the newer treespec that wrote it"
        )
    wrong = [name for name, kind in _META.items() if type(meta.get(name)) is not kind]
    if wrong or set(meta) - set(_META):
        unknown = ", ".join(sorted(set(meta) - set(_META)))[:200]
        raise InvalidTrace(
            f"{path}: its metadata lacks {', '.join(wrong) or 'nothing'}"
            + (f" and has unknown keys: {unknown}" if unknown else "")
        )
    del meta["version"]
    return meta
