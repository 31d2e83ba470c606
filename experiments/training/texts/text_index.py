"""The files of a folder of texts: token ids in shards, and one line of an index for each batch.

A shard `ids-0000.bin` holds the ids of texts one after another, as little-endian uint16 where the
vocabulary allows it, else uint32. Its batch's line in `batches.jsonl` is written after them and makes them
count: ids beyond the last line's end are what a killed run has left.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.files import DATA_BYTES, parse_json, read_bytes

BATCHES = "batches.jsonl"

SHARD_BYTES = 8 * 2**20
"""A shard that has reached this size gets no further batch."""


@dataclass(frozen=True)
class BatchLine:
    """A batch of texts.

    Args:
        batch: its number.
        shard: number of the shard that holds its ids.
        end: bytes of that shard up to the end of the batch.
        lengths: tokens of each text, with its prompt.
        prompts: tokens of each text's prompt.
        greedy: 1 for each answer that was written greedily, else 0.
        invented: 1 for each prompt that the target has invented, else 0.
        dropped: texts that were not kept, by reason.
    """

    batch: int
    shard: int
    end: int
    lengths: list[int]
    prompts: list[int]
    greedy: list[int]
    invented: list[int]
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all its texts after their prompts."""
        return sum(self.lengths) - sum(self.prompts)

    def written(self) -> bytes:
        """The line in the index."""
        return (json.dumps(asdict(self)) + "\n").encode()


def shard_path(folder: Path, shard: int) -> Path:
    """The file of a shard."""
    return folder / f"ids-{shard:04}.bin"


def dtype_for(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The type that ids are stored in."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def read_lines_of(folder: Path) -> tuple[list[BatchLine], int]:
    """The complete lines of an index, and their bytes; a last line that a kill has cut does not count.

    Raises:
        RunFolderError: if another line is damaged; names the file and the line.
    """
    path = folder / BATCHES
    if not path.exists():
        return [], 0
    try:
        whole = read_bytes(path, DATA_BYTES)
        whole = whole[: whole.rfind(b"\n") + 1]
        lines = [_line(number, row) for number, row in enumerate(whole.splitlines())]
    except Unreadable as error:
        raise RunFolderError(
            f"{path}: {error}: restore the file, or choose another folder"
        ) from None
    return lines, len(whole)


def _line(number: int, row: bytes) -> BatchLine:
    try:
        line = BatchLine(**parse_json(row))
    except (Unreadable, TypeError):
        raise Unreadable(f"line {number + 1} is no line of a batch") from None
    if line.batch != number or not len(line.lengths) == len(line.prompts) == len(line.greedy):
        raise Unreadable(f"line {number + 1} does not follow from the line before")
    return line


def require_shards(folder: Path, lines: Iterable[BatchLine]) -> None:
    """Refuse shards that are missing or shorter than the index says.

    Raises:
        RunFolderError: names the file.
    """
    ends = {line.shard: line.end for line in lines}
    for shard, end in ends.items():
        path = shard_path(folder, shard)
        size = path.stat().st_size if path.is_file() else 0
        if size < end:
            raise RunFolderError(
                f"{path} has {size:,} bytes, but {BATCHES} tells of {end:,}: restore the file, or choose "
                "another folder"
            )
