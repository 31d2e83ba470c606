"""Read files that users name, and write files so that each is there completely or not at all.

Every size is looked at before anything is read, so that a wrong file (weights given as a config) gets
one clear sentence. JSON, YAML and arrays are data: nothing in a file is ever executed. Failures
raise `Unreadable`, which callers turn into their own error.
"""

import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

import numpy as np

from treespec.errors import Unreadable

CONFIG_BYTES = 2**20
"""Size limit of configs and plug-ins."""
TEXT_BYTES = 2**25
"""Size limit of texts, and of JSON that users write or edit."""
DATA_BYTES = 2**31
"""Size limit of logs and tables."""
ARRAY_BYTES = 2**27
"""Size limit of arrays, packed and unpacked: a million positions of eight children take 72 MB."""

TEMPORARY = ".treespec-"
"""How names of incomplete files begin; they end with `.tmp`."""

Content = bytes | Callable[[IO[bytes]], object]


# -- values in messages ---------------------------------------------------------------------------


def brief(value: object, most: int = 200) -> str:
    """The value as Python writes it, cut after `most` characters, for messages."""
    try:
        text = repr(value)
    except (Exception, SystemExit):  # of a plug-in
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def in_json(value: object, most: int = 60) -> str:
    """The value as JSON text, cut after `most` characters."""
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 4]} ..."


# -- reading --------------------------------------------------------------------------------------


@contextmanager
def open_file(path: str | os.PathLike[str], most: int | None = TEXT_BYTES) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most` bytes (None: of any size).

    Raises:
        Unreadable: if there is no such file, it is a folder, a device or a pipe, or it is larger. The
            message begins with the path.
    """
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise Unreadable(f"{path}: Is a directory")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its other end
            raise Unreadable(f"{path} is not a regular file: copy its content into a file")
        if most is not None and status.st_size > most:
            size = f"{status.st_size:,} bytes, more than the {most:,}"
            raise Unreadable(f"{path}: {size} that such a file may have: is it the right file?")
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    except Unreadable:
        raise
    except UnicodeEncodeError:
        raise Unreadable(f"{str(path)!r}: no file name here: set PYTHONUTF8=1") from None
    except ValueError:
        raise Unreadable(f"{str(path)!r}: a file name cannot contain a null byte") from None
    with file:
        yield file


def read_bytes(path: str | os.PathLike[str], most: int | None = TEXT_BYTES) -> bytes:
    """The content of a file; see `open_file`."""
    with open_file(path, most) as file:
        return file.read()


def read_text(path: str | os.PathLike[str], most: int = TEXT_BYTES, encoding: str = "utf-8") -> str:
    """The text of a UTF-8 file; "utf-8-sig" skips a byte order mark. See `open_file`."""
    try:
        return read_bytes(path, most).decode(encoding)
    except UnicodeDecodeError as error:
        problem = f"byte {error.start}: {error.reason}"
        raise Unreadable(f"{path}: not UTF-8 text ({problem}); convert the file") from None


def parse_json(text: str | bytes, *, constants: bool = False, unique: bool = True) -> Any:
    """The value in a JSON text.

    Args:
        text: the text; bytes are UTF-8.
        constants: whether NaN and Infinity are numbers.
        unique: whether an object that holds a key twice is refused; otherwise the last entry wins.

    Raises:
        Unreadable: with line and column, if the text is not JSON.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        if not text.strip():
            raise Unreadable("it is empty")
        return json.loads(
            text,
            parse_constant=None if constants else _refuse_constant,
            object_pairs_hook=_with_unique_keys if unique else None,
        )
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise Unreadable(error.msg, error.lineno, error.colno) from None
    except Unreadable:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise Unreadable(str(error)) from None
    except RecursionError:
        raise Unreadable("nested too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    raise Unreadable(f"holds {name}, which is not a number")


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Unreadable(f"the key {brief(twice, 60)} appears twice in one object")
    return data


@cache
def _loader() -> Any:
    """PyYAML's loader of plain data, without aliases and without repeated keys; loaded at first use."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(
                    problem="an alias (*name): write its value", problem_mark=mark
                )
            return super().compose_node(parent, index)

        def construct_scalar(self, node: Any) -> str:
            text = super().construct_scalar(node)
            if re.search("[\ud800-\udfff]", text):
                problem = "half a character (a lone surrogate): write the whole one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return text

    def unique_mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
        data = loader.construct_mapping(node, deep=True)
        if len(data) < len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), keys[0])
            problem = f"key {brief(twice, 60)} appears twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return data

    Loader.add_constructor("tag:yaml.org,2002:map", unique_mapping)
    return Loader


def parse_yaml(text: str) -> Any:
    """The plain data in a YAML text: one document, without aliases and without repeated keys.

    Raises:
        Unreadable: with line and column, if the text is not such YAML.
    """
    import yaml

    try:
        return yaml.load(text, _loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        raise Unreadable(
            reason, *(() if mark is None else (mark.line + 1, mark.column + 1))
        ) from None
    except RecursionError:
        raise Unreadable("nested too deep") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # such as no such date, a number too long, or `!!bool x`
        raise Unreadable(f"a value does not fit its type: {' '.join(str(error).split())}") from None


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz archive by name. Declared sizes are looked at first; pickles are never loaded.

    Raises:
        Unreadable: if the file is missing, too large or no such archive. The message begins with the path.
    """
    try:
        with open_file(path, ARRAY_BYTES) as file:
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > ARRAY_BYTES:
                raise Unreadable(f"{path}: unpacks to {size:,} bytes, at most {ARRAY_BYTES:,}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: np.asarray(arrays[name]) for name in arrays}
    except Unreadable:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types
        raise Unreadable(f"{path}: not an archive of arrays (.npz), or damaged: {error}") from None


# -- writing --------------------------------------------------------------------------------------


def write_whole(path: Path, content: str | Content, *, new: bool = False) -> Path:
    """Write a file by way of a temporary file beside it, which is renamed once it is complete and on disk.

    Args:
        path: the file; an existing file is replaced once the new one is complete.
        content: text, written as UTF-8; bytes; or a function that writes large content to the open file.
        new: do not replace an existing file.

    Raises:
        FileExistsError: if `new` is set and the path exists.
        OSError: with its path, if the file cannot be written; no partial file is left.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            data(file) if callable(data) else file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not new:
            return temporary.replace(path)
        try:
            os.link(temporary, path)  # takes the name with its content, or raises
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            path.open("xb").close()
            temporary.replace(path)
        return path
    except OSError as error:  # a write on a full disk names no file, others the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """This project's folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treespec"


def append_whole(path: Path, data: bytes) -> None:
    """Append to a file, and wait until it is on disk; what a failed write has left is taken away again.

    Raises:
        OSError: with the path.
    """
    remaining = memoryview(data)
    try:
        with path.open("ab", buffering=0) as file:  # no buffer that close() would have to write
            end = file.seek(0, os.SEEK_END)
            try:
                while remaining:
                    remaining = remaining[file.write(remaining) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
