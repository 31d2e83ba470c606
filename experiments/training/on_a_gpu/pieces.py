"""Files that are cut into pieces, travel piece by piece, and are put together again.

The pieces of `model.whl` are `model.whl.1-of-4` to `model.whl.4-of-4`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from treespec.experiments.errors import TrainingError

_NAME = re.compile(r"(?P<name>.+)\.(?P<number>\d+)-of-(?P<count>\d+)")


def cut(name: str, content: bytes, most: int) -> dict[str, bytes]:
    """The pieces of a file by their names, each of `most` bytes at most and all of about the same size."""
    count = max(1, -(-len(content) // most))
    size = max(1, -(-len(content) // count))
    return {f"{name}.{i + 1}-of-{count}": content[i * size : (i + 1) * size] for i in range(count)}


def names_in(folder: Path) -> dict[str, list[Path]]:
    """The pieces of a folder, by the names of the files that they are of."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*-of-*")):
        if (parts := _NAME.fullmatch(path.name)) is not None:
            found.setdefault(parts["name"], []).append(path)
    return found


def joined(pieces: Iterable[Path]) -> bytes | None:
    """The file that pieces are of; None while some of them are missing.

    Raises:
        TrainingError: if they are of several cuts.
    """
    found = {path: _NAME.fullmatch(path.name) for path in pieces}
    parts = {int(part["number"]): path for path, part in found.items() if part is not None}
    counts = {int(part["count"]) for part in found.values() if part is not None}
    if len(counts) > 1:
        names = ", ".join(path.name for path in found)
        raise TrainingError(f"{names} are pieces of several cuts: remove the older ones")
    if [*parts] and sorted(parts) == [*range(1, min(counts) + 1)]:
        return b"".join(parts[number].read_bytes() for number in sorted(parts))
    return None
