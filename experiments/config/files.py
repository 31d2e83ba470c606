"""Files and numbers of the command line: checked before anything runs; files are written at the end."""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from treespec.experiments.errors import ConfigError
from treespec.reading import brief
from treespec.whole_file import write_whole

__all__ = [
    "is_file",
    "is_there",
    "making",
    "require_new",
    "require_own",
    "require_there",
    "require_within",
    "stamp",
    "write_new",
]

LARGEST_REPLACED = 1 << 26
"""Bytes of a file of ours that is replaced."""


def is_file(text: str) -> bool:
    """Whether a text that may also be a tree or rates is the name of a file."""
    try:
        return is_there(text) and Path(text).is_file()
    except PermissionError:
        return True


def is_there(text: str) -> bool:
    """Whether a text that may also be a tree or rates is the name of a file, folder, device or pipe."""
    try:
        return Path(text).exists()
    except PermissionError:  # in a folder of others: reading it says so
        return True
    except (OSError, ValueError):  # too long for a name, or with a zero byte in it
        return False


def stamp(file: str) -> tuple[int, int] | None:
    """What changes when a file does; None if there is none, which its reader then says."""
    try:
        about = os.stat(file)
    except (OSError, ValueError):
        return None
    return about.st_mtime_ns, about.st_size


def require_within(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number that means nothing, or would take all memory or time before anything useful is done.

    Args:
        name: of the option, as it is typed.
        value: what was given.
        least: the smallest that is allowed.
        most: the largest.

    Raises:
        ConfigError: naming it.
    """
    if value < least:
        raise ConfigError(f"{name} = {brief(value, 60)}: must be at least {least:,}")
    if value > most:
        raise ConfigError(f"{name} = {brief(value, 60)}: must be at most {most:,}")


def require_there(path: str | Path, option: str, command: str) -> None:
    """Refuse, before anything is read, a file that is not there.

    Args:
        path: of the file.
        option: that names it, for messages; empty for an argument.
        command: that writes such files.

    Raises:
        ConfigError: naming the file, the option and the command.
    """
    if not is_there(str(path)):
        raise ConfigError(
            f"{option}{' ' * bool(option)}{brief(str(path))}: there is no such file; `{command}` writes one"
        )


def require_new(out: Path, option: str = "--out ") -> None:
    """Refuse, before anything is measured, a file that is there already or cannot be made.

    Args:
        out: the file.
        option: that names it, for messages; empty for an argument.

    Raises:
        ConfigError: naming it.
    """
    if os.path.lexists(out):
        raise ConfigError(f"{option}{out} is there already: name another file")
    if not os.path.isdir(out.parent):
        raise ConfigError(f"{option}{out}: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}{out}: no file may be made in the folder {out.parent}")


def write_new(out: Path, content: str | bytes) -> Path:
    """Write a file that was not there when `require_new` looked; it is there whole or not at all.

    Raises:
        ConfigError: if it is there by now; nothing of it is lost.
        OSError: if it cannot be written.
    """
    try:
        return write_whole(out, content, new=True)
    except FileExistsError:
        raise ConfigError(f"--out {out} is there by now, and is left as it is") from None


def require_own(path: Path, keys: Collection[str], what: str) -> None:
    """Refuse, before anything is measured, to replace a file that is not one that would be written.

    Args:
        path: the file; it may be missing.
        keys: of the JSON object that is written, and that a file must have to be replaced.
        what: it is called in messages.

    Raises:
        ConfigError: naming it.
    """
    if not os.path.lexists(path):
        return
    replaceable = False
    if path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST_REPLACED:
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(path.read_bytes())
            replaceable = isinstance(data, dict) and set(keys) <= set(data)
    if not replaceable:
        raise ConfigError(
            f"{path} already exists and is not a {what}: move it away, or give another place with --out"
        )


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a folder for results before they are computed, and remove it if there are none.

    Raises:
        ConfigError: if it cannot be made.
    """
    made, missing = [], folder
    while not os.path.lexists(missing):
        made.append(missing)
        missing = missing.parent
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{folder} is a file; give a folder with --out") from None
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror}; give another folder with --out"
            ) from None
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise
