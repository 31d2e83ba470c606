"""Files that are there whole or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: str | bytes, *, new: bool = False) -> Path:
    """Write a file by way of another one beside it, whose name nobody has.

    Args:
        path: the file; what is there is replaced once the new one is whole.
        content: text is written as UTF-8.
        new: replace nothing.

    Returns:
        The path.

    Raises:
        FileExistsError: if `new`, and there is something.
        OSError: if it cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".treespec-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if not new:
            return temporary.replace(path)
        _link(temporary, path)
        return path
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _link(temporary: Path, path: Path) -> None:
    """Give a file a second name that nothing has; by a plain rename where there are no hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(17, "File exists", os.fspath(path)) from None
        temporary.replace(path)
