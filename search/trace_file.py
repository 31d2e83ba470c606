"""Traces as files: an .npz archive of plain arrays, with the metadata as JSON among them.

    offsets, tokens, ranks, probs, accepted, kept    as in `Trace`; probabilities in float32
    meta                                             uint8, UTF-8 JSON: version, law, rule, sampling, width,
                                                     forced, about

Files come from anywhere: names, types and sizes of all members are checked before one is read, and no
pickle is ever opened.
"""

import json
import lzma
import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from search.errors import InvalidTrace
from search.trace import Trace
from treespec.json_words import why_no_json

__all__ = ["VERSION", "load", "save"]

VERSION = 1
LARGEST = 1 << 32
"""Bytes of a file when it is unpacked."""

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
    RuntimeError, MemoryError, tokenize.TokenError,
)  # fmt: skip


def save(trace: Trace, path: Path) -> Path:
    """Write a trace; a file that is there is replaced once the new one is whole.

    Args:
        trace: what to write; probabilities are rounded to float32.
        path: the file, which should end with .npz.

    Raises:
        InvalidTrace: if `about` or `sampling` is no plain data, or the path cannot be written.
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
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, meta=np.frombuffer(text, np.uint8), **arrays)
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidTrace(f"{path} cannot be written: {error.strerror}") from None
    return path


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InvalidTrace: if the file is missing, no trace, damaged, or of a newer version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _read(archive, path)
    except InvalidTrace:
        raise
    except OSError as error:
        raise InvalidTrace(f"{path}: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise InvalidTrace(f"{path} is no trace: {error}") from None
    meta = _meta(arrays.pop("meta").tobytes(), path)
    try:
        return Trace(**(arrays | meta))
    except InvalidTrace as error:
        raise InvalidTrace(f"{path}: {error}") from None


def _read(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    members = archive.infolist()
    names = sorted(member.filename for member in members)
    if names != sorted(f"{name}.npy" for name in _ARRAYS):
        raise InvalidTrace(
            f"{path} is no trace: it holds {', '.join(names[:8]) or 'nothing'} instead of "
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
        raise InvalidTrace(f"{path}: {name} says it has shape {list(shape)}, but is not so long")
    return np.frombuffer(data, dtype).reshape(shape)


def _meta(text: bytes, path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTrace(f"{path}: its metadata is {why_no_json(error)}") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("version"), int):
        raise InvalidTrace(f"{path}: its metadata has no version")
    if meta["version"] > VERSION:
        raise InvalidTrace(
            f"{path} has version {meta['version']}, but this treespec reads versions up to {VERSION}: "
            "read it with the newer treespec that wrote it"
        )
    wrong = [name for name, kind in _META.items() if type(meta.get(name)) is not kind]
    if wrong or set(meta) - set(_META):
        unknown = ", ".join(sorted(set(meta) - set(_META)))
        raise InvalidTrace(
            f"{path}: its metadata lacks {', '.join(wrong) or 'nothing'}"
            + (f" and has unknown keys: {unknown}" if unknown else "")
        )
    del meta["version"]
    return meta
