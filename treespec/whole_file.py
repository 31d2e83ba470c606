"""Files that are there whole or not at all."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

__all__ = ["write_whole"]

Content: TypeAlias = bytes | Callable[[IO[bytes]], object]


def write_whole(
    path: Path, content: str | Content, *, new: bool = False, temporary: Path | None = None
) -> Path:
    """Write a file by way of another one, which gets its name when it is whole.

    Args:
        path: the file; what is there is replaced once the new one is whole.
        content: text is written as UTF-8; or what writes to the open file, where that is large.
        new: replace nothing. Where the system knows files without a name (Linux, on local disks) a kill
            leaves nothing; where it knows hard links, the temporary; elsewhere that and an empty file.
        temporary: where it is written first; beside it, under a name that nobody has, by default.

    Returns:
        The path.

    Raises:
        FileExistsError: if `new`, and there is something.
        OSError: if it cannot be written; nothing is left of it.
    """
    data = content.encode() if isinstance(content, str) else content
    if new and _made_without_name(path, data):
        return path
    temporary = temporary or path.with_name(f".treespec-{secrets.token_hex(8)}.tmp")
    _make(temporary, data)
    try:
        return _named(temporary, path) if new else temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _made_without_name(path: Path, data: Content) -> bool:
    """Make a file that has no name until it is whole; false where the system knows no such files."""
    try:
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o666)
        with open(descriptor, "wb") as file:
            _fill(file, data)
            # With a folder's descriptor, because Python follows links only then.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    except FileExistsError:
        raise
    except (AttributeError, OSError):
        return False
    return True


def _named(temporary: Path, path: Path) -> Path:
    """Give a file a name that nothing has; without hard links an empty file claims it first."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        path.open("xb").close()
        try:
            return temporary.replace(path)
        except BaseException:
            path.unlink()
            raise
    return path


def _make(path: Path, data: Content) -> None:
    """Make a file where nothing is; what cannot be written whole is removed."""
    with path.open("xb") as file:
        try:
            _fill(file, data)
        except BaseException:
            path.unlink()
            raise


def _fill(file: IO[bytes], data: Content) -> None:
    if callable(data):
        data(file)
    else:
        file.write(data)
    file.flush()
    os.fsync(file.fileno())
