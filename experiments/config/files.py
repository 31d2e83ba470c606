"""Check files and numbers of the command line before anything runs, and write result files at the end.

Nothing here imports torch: a wrong path is told at once.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

from treespec.errors import Unreadable, one_line
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.files import CONFIG_BYTES, TEXT_BYTES, brief, read_text, write_whole

RECORDING = "treespec trace CONFIG --out trace.npz"
TIMES = "treespec profile CONFIG --out latency.json"


def config_text(source: str | Path) -> tuple[Path, str]:
    """The path of a config's file, and its text."""
    path = Path(source)
    if not is_file(str(source)):
        known = shipped()
        if str(source) in known:
            path = known[str(source)]
        elif not is_there(str(source)):
            from treespec.reading_models import nearest

            hint = nearest(str(source)[:80], list(known))
            raise ConfigError(
                f"no config file {brief(str(source))}{hint} (shipped: {', '.join(known)})"
            )
        elif path.is_dir():
            raise ConfigError(f"{path} is a folder; give a YAML file or one of: {', '.join(known)}")
    try:
        return path, read_text(path, CONFIG_BYTES)
    except Unreadable as error:  # a device or a pipe, among others
        raise ConfigError(str(error)) from None


def shipped() -> dict[str, Path]:
    folder = Path(str(files("treespec.experiments"))) / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def is_file(text: str) -> bool:
    """Whether a text (which may also spell a tree or rates) is the path of a file."""
    try:
        return is_there(text) and Path(text).is_file()
    except PermissionError:
        return True


def is_there(text: str) -> bool:
    """Whether a text (which may also spell a tree or rates) is the path of anything that exists."""
    try:
        return Path(text).exists()
    except PermissionError:  # in a folder that may not be read: the reader reports it
        return True
    except (OSError, ValueError):  # too long for a path, or contains a zero byte
        return False


def stamp(file: str) -> tuple[int, int] | None:
    """Modification time and size of a file, for caches; None if it is missing, which its reader reports."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def require_within(name: str, value: int | None, least: int, most: int) -> None:
    """Reject the value of an option outside its range; None means that it was not given."""
    if value is not None and value < least:
        raise ConfigError(f"{name} = {brief(value, 60)}: must be at least {least:,}")
    if value is not None and value > most:
        raise ConfigError(f"{name} = {brief(value, 60)}: must be at most {most:,}")


def require_there(path: str | Path, option: str, command: str) -> None:
    """Reject a missing file, named by an option (empty: an argument), before anything is read."""
    if not is_there(str(path)):
        raise ConfigError(
            f"{option}{' ' * bool(option)}{brief(str(path))}: there is no such file; `{command}` writes one"
        )


def require_run(*folders: Path) -> None:
    """Reject folders of runs that do not exist."""
    for folder in folders:
        if not os.path.lexists(folder):
            raise RunFolderError(f"{folder} is not a run folder: there is no such folder")


def require_source(text: str) -> None:
    """Reject a source of acceptance rates whose name is that of a file, if there is none."""
    suffix = Path(text).suffix
    if suffix == ".npz":
        require_there(text, "", RECORDING)
    elif suffix in (".json", ".pt"):
        require_there(text, "", f"treespec estimate TRACE --out rates{suffix}")


def require_tree(text: str) -> None:
    """Reject the name of a file, rather than a tree as text, if there is none."""
    if re.fullmatch(r"[\w./\\~-]+\.[A-Za-z]\w*", text):
        require_there(text, "", "treespec search SOURCE --out tree.json")


def require_new(out: Path, option: str = "--out ") -> None:
    """Reject, before anything is measured, an output file that exists already or cannot be created."""
    require_one_line(out, ConfigError, option)
    if os.path.lexists(out):
        raise ConfigError(f"{option}{out} already exists: name another file")
    if not os.path.isdir(out.parent):
        raise ConfigError(f"{option}{out}: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{option}{out}: no permission to create files in the folder {out.parent}"
        )


def require_one_line(
    out: Path, error: type[Exception] = ConfigError, option: str = "--out "
) -> None:
    """Reject a path with line ends or other control characters, which scripts and terminals would obey."""
    if not one_line(str(out)):
        raise error(f"{option}{brief(str(out))}: give a name without control characters")


def write_new(out: Path, content: str | bytes) -> Path:
    """Write, atomically, a file that did not exist when `require_new` checked."""
    try:
        return write_whole(out, content, new=True)
    except FileExistsError:
        raise ConfigError(
            f"--out {out} has been created in the meantime, and is left as it is"
        ) from None


def require_own(path: Path, keys: Collection[str], what: str) -> None:
    """Reject, before anything is measured, a file that does not hold an object with these keys."""
    if not os.path.lexists(path):
        return
    replaceable = False
    if path.is_file() and not path.is_symlink() and path.stat().st_size <= TEXT_BYTES:
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(path.read_bytes())
            replaceable = isinstance(data, dict) and set(keys) <= set(data)
    if not replaceable:
        raise ConfigError(
            f"{path} already exists and is not a {what}: move it away, or give another place with --out"
        )


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Create a folder for results before they are computed; remove it again if computing them fails."""
    require_one_line(folder)
    places = (folder, *folder.parents)
    created = list(takewhile(lambda place: not os.path.lexists(place), places))
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{folder} is a file; give a folder with --out") from None
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror}; choose another folder with --out"
            ) from None
        yield
    except BaseException:
        for path in created:
            with suppress(OSError):
                path.rmdir()
        raise


def integers(name: str, text: str | None) -> list[int] | None:
    """Numbers with commas between them, as they are typed."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{name} = {brief(text)}, but must be integers with commas between them, such as 64,256"
        ) from None
