"""Read external files, and the JSON in them, within stated limits.

Every file that a user names goes through `read_bytes`, `read_text` or `open_file`, every JSON text through
`parse_json`, every YAML text through `treespec.reading_yaml.parse_yaml`. Sizes are bounded before anything
is built from the content, so that a hostile or mistaken file is refused in less than two seconds and 500 MB
of memory. Failures raise `Unreadable`, which callers turn into their own error that names file and key.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

from treespec.door import shown
from treespec.errors import Unreadable

__all__ = [
    "DEEPEST_NESTING",
    "LONGEST_NUMBER",
    "MOST_BYTES",
    "MOST_VALUES",
    "brief",
    "in_json",
    "open_file",
    "parse_json",
    "read_bytes",
    "read_text",
]

MOST_BYTES = 32 * 2**20
"""Largest size in bytes of a file that is read as a whole."""

MOST_VALUES = 2**20
"""Largest number of brackets, commas and colons in a JSON text. Each value needs at least one of them, and
takes up to 200 bytes of memory."""

DEEPEST_NESTING = 64
"""Deepest nesting: open brackets in JSON, levels in YAML."""

LONGEST_NUMBER = 1000
"""Largest number of characters of a number; Python's parsing time grows with their square."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_NO_WAITING = (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_STRING = re.compile(_TEXT, re.DOTALL)
_TOKEN = re.compile(_TEXT + r"|([\[{])|[\]}]", re.DOTALL)


_WORDS_OF_JSON = {
    "Expecting value": "a value is missing",
    "Expecting property name": "a key in double quotes is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Unterminated string": "a string has no closing quote",
    "Invalid control character": "a string contains a line break or another control character",
    "Invalid \\": "a string contains an invalid backslash escape",
    "Extra data": "there is extra text after the end",
    "Unexpected UTF-8 BOM": "it begins with a byte order mark",
    "Illegal trailing comma": "there is a comma before a closing bracket",
}
"""Messages of `json`, and what to say to users instead."""


def brief(value: object, most: int = 200) -> str:
    """The value as shown in messages about files, which have room for `most` characters of it."""
    return shown(value, most)


def in_json(value: object, most: int = 60) -> str:
    """The value as JSON text, cut after `most` characters."""
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except (ValueError, RecursionError):  # Python does not print integers of more than 4300 digits
        return brief(value, most)
    return text if len(text) <= most else f"{text[: most - 4]} ..."


@contextmanager
def open_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """Open a file of at most `most` bytes; never blocks, as opening a pipe would.

    Raises:
        Unreadable: if there is no such file, it is a folder, device, pipe or socket, or it is larger. The
            message begins with the path.
    """
    name = os.fspath(path)
    name = name if len(name) <= 300 else f"{name[:200]}...{name[-60:]}"
    try:
        # Check before opening: opening alone triggers some devices.
        _require_regular(name, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | _NO_WAITING)
    except OSError as error:
        raise Unreadable(f"{name}: {error.strerror}") from None
    except Unreadable:
        raise
    except ValueError:  # a null byte in the name
        raise Unreadable(f"{name!r}: a file name cannot contain a null byte") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _require_regular(name, status)
        if status.st_size > most:
            raise Unreadable(f"{name}: {status.st_size} bytes, more than the {most} bytes allowed")
        yield file


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """The content of a file.

    Raises:
        Unreadable: see `open_file`.
    """
    with open_file(path, most) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror}") from None
    if len(data) > most:  # the file grew, or the system generates it while it is read
        raise Unreadable(f"{path}: more than the {most} bytes allowed")
    return data


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """The text of a file.

    Args:
        path: path of the file.
        most: largest size in bytes.
        encoding: "utf-8", or "utf-8-sig" to skip a byte order mark.

    Raises:
        Unreadable: see `open_file`; or if the content is not UTF-8.
    """
    try:
        return read_bytes(path, most).decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"{path}: not UTF-8 text (byte {error.start}: {error.reason}); convert the file"
        ) from None


def parse_json(
    text: str | bytes, *, constants: bool = False, unique: bool = True, most: int = MOST_VALUES
) -> Any:
    """The value in a JSON text.

    Args:
        text: JSON, nested at most `DEEPEST_NESTING` levels deep.
        constants: whether NaN and Infinity are accepted as numbers.
        unique: whether to refuse an object that holds a key twice; otherwise the last entry wins.
        most: largest number of brackets, commas and colons outside strings.

    Raises:
        Unreadable: if the text is not JSON or exceeds these limits; or if a number has more than
            `LONGEST_NUMBER` characters, or is too large for a float.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable(f"byte {error.start} is not UTF-8 text") from None
    _require_small(text, most)
    try:
        return json.loads(
            text,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=None if constants else _refuse_constant,
            object_pairs_hook=_with_unique_keys if unique else None,
        )
    except json.JSONDecodeError as error:
        raise Unreadable(_why_no_json(error), error.lineno, error.colno) from None
    except RecursionError:
        raise Unreadable(f"nested more than {DEEPEST_NESTING} levels deep") from None


def _why_no_json(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "it is empty"
    known = (words for start, words in _WORDS_OF_JSON.items() if error.msg.startswith(start))
    return next(known, "it ends too early")


def _require_regular(name: str, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise Unreadable(f"{name}: Is a directory")
    if kind != stat.S_IFREG:
        raise Unreadable(
            f"{name} is {_KINDS.get(kind, 'not a regular file')}: copy its content into a file, and name "
            "that file"
        )


def _require_small(text: str, most: int) -> None:
    """Refuse too many values and too deep nesting, not counting characters inside strings."""
    opening = text.count("[") + text.count("{")
    if opening + text.count(",") + text.count(":") > most and _more_outside_strings(text, most):
        raise Unreadable(f"more than {most:,} brackets, commas and colons")
    if opening <= DEEPEST_NESTING:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[1]:
            depth += 1
            if depth > DEEPEST_NESTING:
                line = text.count("\n", 0, token.start()) + 1
                column = token.start() - text.rfind("\n", 0, token.start())
                raise Unreadable(f"nested more than {DEEPEST_NESTING} levels deep", line, column)
        elif text[token.start()] in "]}":
            depth -= 1


def _more_outside_strings(text: str, most: int) -> bool:
    """Whether more than `most` brackets, commas and colons stand outside strings.

    Also True if there are more strings than that many marks could separate.
    """
    marks = end = 0
    for strings, string in enumerate(_STRING.finditer(text)):
        between = text[end : string.start()]
        marks += sum(map(between.count, "[{,:"))
        if max(marks, strings - 1) > most:
            return True
        end = string.end()
    return marks + sum(map(text[end:].count, "[{,:")) > most


def _parse_int(text: str) -> int:
    _require_short(text)
    return int(text)


def _parse_float(text: str) -> float:
    _require_short(text)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Unreadable(f"{brief(text, 40)[1:-1]} is too large for a number")
    return number


def _require_short(text: str) -> None:
    if len(text) > LONGEST_NUMBER:
        raise Unreadable(f"a number of {len(text):,} characters: at most {LONGEST_NUMBER:,}")


def _refuse_constant(name: str) -> NoReturn:
    raise Unreadable(f"holds {name}, which is not a number")


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        seen: set[str] = set()
        repeated = next(key for key in keys if key in seen or seen.add(key))
        raise Unreadable(f"the key {brief(repeated, 60)} appears twice in one object")
    return unique
