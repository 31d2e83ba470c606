"""Write files atomically: a file exists completely or not at all."""

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
    """Write a file by way of a temporary file, which is renamed once it is complete.

    Args:
        path: path of the file; an existing file is replaced once the new one is complete.
        content: text, written as UTF-8; bytes; or a function that writes large content to the open file.
        new: do not replace an existing file. If the process is killed, nothing is left where the system
            supports unnamed files (Linux, on local disks); the temporary file where it supports hard
            links; elsewhere that and an empty file.
        temporary: path of the temporary file; by default next to `path`, with a random name.

    Returns:
        The path.

    Raises:
        FileExistsError: if `new` is set and the path exists.
        OSError: if the file cannot be written; no partial file is left.
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
    """Write a file that has no name until it is complete; False where the system does not support this."""
    try:
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o666)
        with open(descriptor, "wb") as file:
            _fill(file, data)
            # A folder descriptor is given because Python follows symbolic links only then.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
    except FileExistsError:
        raise
    except (AttributeError, OSError):
        return False
    return True


def _named(temporary: Path, path: Path) -> Path:
    """Rename a file to an unused name; without hard links, an empty file reserves the name first."""
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
    """Create a file at an unused path; remove it if it cannot be written completely."""
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
