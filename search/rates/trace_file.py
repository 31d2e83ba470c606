"""The file of a trace: an .npz archive of plain arrays, with the metadata as JSON among them.

    offsets, tokens, ranks, probs, accepted, kept    as in `Trace`; probabilities in float32
    files                                            as in `Trace`; only there if texts share files
    draft_row_*, text_draft_*                        as in `DraftRows` and `TextDrafts`; only there if the
                                                     trace has them
    meta                                             uint8, UTF-8 JSON: version, law, rule, sampling, width,
                                                     forced, about

Version 2 is that of traces with `text_drafts`; the others are version 1.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO

import numpy as np
from pydantic import AfterValidator, ConfigDict

from treespec.errors import Unreadable
from treespec.reading import brief, open_file
from treespec.reading_models import Strict, read_model
from treespec.renamed_keys import with_new_names
from treespec.search.errors import InvalidTrace
from treespec.search.rates.draft_rows import DraftRows
from treespec.search.rates.text_drafts import TextDrafts

__all__ = ["LARGEST_FILE", "VERSION", "pack", "unpack"]

VERSION = 2
LARGEST_FILE = 1 << 27
"""Bytes of a file, packed and unpacked: a million positions of eight children take 72 MB."""

LONGEST_DIRECTORY = 1 << 12
"""Bytes of an archive's list of its members, which is read as a whole; ours takes 400."""

_ARRAYS = {
    "offsets": "<i8", "tokens": "<i4", "ranks": "<i4", "probs": "<f4", "accepted": "<f4",
    "kept": "<i8", "meta": "|u1",
}  # fmt: skip
_ROW_ARRAYS = {
    "draft_row_offsets": "<i8", "draft_row_parents": "<i4", "draft_row_ranks": "<i4",
    "draft_row_probs": "<f4", "draft_row_text_ranks": "<i4",
}  # fmt: skip
"""Of a trace with draft rows; older files, and those without, have none of them."""

_TEXT_ARRAYS = {
    "text_draft_drafts": "<i8", "text_draft_nodes": "<i8", "text_draft_seen": "<i8",
    "text_draft_most": "<i8", "text_draft_parents": "<i4", "text_draft_tokens": "<i4",
    "text_draft_counts": "<i4", "text_draft_limits": "<i8",
}  # fmt: skip
"""Of a trace of a text source."""

_FILES = {"files": "<i8"}
"""Of a trace of excerpts; older files, and those whose texts stand each for itself, have none."""

_PARTS: dict[str, tuple[dict[str, str], str, Callable[..., Any]]] = {
    "draft_rows": (_ROW_ARRAYS, "draft_row_", DraftRows),
    "text_drafts": (_TEXT_ARRAYS, "text_draft_", TextDrafts),
}
"""What a trace may have besides: its arrays, how their names begin, and what it is."""

_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError,
    RuntimeError, MemoryError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def _readable(version: int) -> int:
    if version > VERSION:
        raise ValueError(
            f"this treespec reads versions up to {VERSION}: read it with the newer treespec that wrote it"
        )
    return version


class _Meta(Strict):
    """The metadata of a trace's file."""

    model_config = ConfigDict(strict=True)

    version: Annotated[int, AfterValidator(_readable)]
    law: str
    rule: str
    sampling: dict[str, Any]
    width: int
    forced: bool
    about: dict[str, Any]


def pack(fields: Mapping[str, Any]) -> bytes:
    """The content of a trace's file.

    Args:
        fields: of the trace, by name; probabilities are rounded to float32.

    Raises:
        InvalidTrace: if `about` or `sampling` is no plain data.
    """
    meta = {
        "version": 1 if fields["text_drafts"] is None else VERSION,
        "law": fields["law"], "rule": fields["rule"],
        "sampling": dict(fields["sampling"]), "width": fields["width"], "forced": fields["forced"],
        "about": dict(fields["about"]),
    }  # fmt: skip
    try:
        text = json.dumps(meta, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidTrace(f"sampling and about must be plain data: {error}") from None
    given: dict[str, Any] = {"meta": np.frombuffer(text, np.uint8), **fields}
    kinds = {"meta": _ARRAYS["meta"]} | _ARRAYS
    if fields["files"] is not None:
        kinds |= _FILES
    for part, (arrays_of, prefix, _) in _PARTS.items():
        if fields[part] is not None:
            kinds |= arrays_of
            given |= {name: getattr(fields[part], name.removeprefix(prefix)) for name in arrays_of}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(given[name], dtype=kind) for name, kind in kinds.items()
    }
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack(path: Path) -> dict[str, Any]:
    """The fields of the trace in a file, by name. What they hold is for `Trace` to check.

    Raises:
        InvalidTrace: if the file is missing, no trace, damaged, or of a newer version.
    """
    try:
        with open_file(path, LARGEST_FILE) as file:
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
    for part, (arrays_of, prefix, made) in _PARTS.items():
        own = {name.removeprefix(prefix): arrays.pop(name) for name in arrays_of if name in arrays}
        try:
            if own:
                meta[part] = made(**own)
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None
    return arrays | meta


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
    known = [
        _ARRAYS | files | more for files in ({}, _FILES) for more in ({}, _ROW_ARRAYS, _TEXT_ARRAYS)
    ]
    if names not in [sorted(f"{name}.npy" for name in one) for one in known]:
        raise InvalidTrace(
            f"{path} is no trace: it holds {', '.join(names[:8])[:200] or 'nothing'} instead of "
            f"{', '.join(_ARRAYS)}"
        )
    size = sum(member.file_size for member in members)
    if size > LARGEST_FILE:
        raise InvalidTrace(
            f"{path} unpacks to {size} bytes, more than the {LARGEST_FILE} of a trace"
        )
    arrays: dict[str, Any] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            arrays[name] = _member(file, name, member.file_size, path)
    return arrays


def _member(file: IO[bytes], name: str, size: int, path: Path) -> np.ndarray:
    """One member; its header is held against its size and what it must be before memory is taken."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise InvalidTrace(f"{path}: {name} is in version {version} of numpy's format, not (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    kind = (_ARRAYS | _FILES | _ROW_ARRAYS | _TEXT_ARRAYS)[name]
    if dtype != np.dtype(kind) or fortran:
        raise InvalidTrace(f"{path}: {name} holds {dtype} instead of {kind}")
    wanted = math.prod(shape) * dtype.itemsize
    data = file.read(min(wanted, size) + 1)
    if len(data) != wanted:
        raise InvalidTrace(
            f"{path}: {name} says it has shape {brief(list(shape))}, but is not so long"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _meta(text: bytes, path: Path) -> dict[str, Any]:
    try:
        meta = read_model(_Meta, text)
    except Unreadable as error:
        raise InvalidTrace(f"{path}: its metadata: {error}") from None
    return meta.model_dump(exclude={"version"}) | {"about": with_new_names(meta.about)}
