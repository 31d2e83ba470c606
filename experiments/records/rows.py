"""The rows of a run (SCHEMA.md), as JSON lines while it runs and as Parquet when it is finished."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.reading import brief, parse_json, read_bytes
from treespec.reading_words import plain_words
from treespec.whole_file import write_whole

if TYPE_CHECKING:
    import polars

__all__ = [
    "SCHEMA_VERSION",
    "SOURCES_JOINED",
    "PromptRow",
    "StepRow",
    "TreeRow",
    "append_lines",
    "read_lines",
    "require_version",
    "schema_of",
    "to_frame",
    "write_lines",
]

LARGEST_LOG = 2**31
"""Bytes of rows: millions of steps."""

SCHEMA_VERSION = 3
"""Of rows and manifests; SCHEMA.md says what each version changed."""

READABLE_VERSIONS = (2, 3)
"""Versions whose rows the types below hold."""


SOURCES_JOINED = " + "
"""Between the names of sources that drafted the same node."""

Metrics = dict[str, float | None]
"""Of plug-ins, by name; a list of names and values in tables, whose columns are the same for all runs."""


class Row(BaseModel):
    """A row; an unknown column, a missing one without a default, or another type makes it invalid."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: int
    sampling: str
    method: str
    repeat: int

    @property
    def unit(self) -> tuple[int, str, int]:
        """What is run, and resumed, as a whole."""
        return self.prompt, self.sampling, self.repeat


class PromptRow(Row):
    """One prompt under one sampling setting by one method. SCHEMA.md explains the columns."""

    prompt_id: str
    category: str | None
    order: int
    prompt_tokens: int
    new_tokens: int
    tokens: list[int]
    text: str
    steps: int
    accepted: int
    emitted: int
    drafted: int | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float | None
    draft_s: float | None
    verify_s: float | None
    accept_s: float | None
    commit_s: float | None
    equal_to_plain: bool | None
    first_divergence: int | None
    divergence_margin: float | None
    error: str | None
    seed: int
    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    peak_cuda_bytes: int | None = None
    cpu_energy_j: float | None = None
    cpu_energy_net_j: float | None = None
    gpu_energy_j: float | None = None
    gpu_energy_net_j: float | None = None
    metrics: Metrics = Field(default_factory=dict)
    alone_s: float | None = None
    alone_error: str | None = None
    state: str | None = None


class StepRow(Row):
    """One step, a pass of the target. SCHEMA.md explains the columns."""

    step: int
    size: int
    depth: int
    accepted: int
    emitted: int
    kept: int
    path_ranks: list[int]
    draft_s: float | None
    verify_s: float | None
    accept_s: float | None
    commit_s: float | None
    at_s: float | None = None
    step_s: float | None = None
    parents: list[int] | None = None
    origins: list[str] | None = None


class TreeRow(Row):
    """The tree of one step, with its tokens, for the first prompts. SCHEMA.md explains the columns."""

    step: int
    parents: list[int]
    tokens: list[int]
    pieces: list[str]
    path: list[int]
    bonus: int
    bonus_piece: str


_Row = TypeVar("_Row", bound=Row)


def require_version(path: Path, version: object, way_out: str) -> None:
    """Refuse a file of a version that is not read.

    Args:
        path: of the file.
        version: that it says it has.
        way_out: what the user can do.

    Raises:
        RunFolderError: naming both versions.
    """
    if str(version) not in map(str, READABLE_VERSIONS):
        raise RunFolderError(
            f"{path} has schema version {brief(version, 60)}, but this treespec reads versions "
            f"{' and '.join(map(str, READABLE_VERSIONS))}; {way_out}"
        )


def append_lines(path: Path, rows: Sequence[Row]) -> None:
    """Append rows and wait until the disk has them.

    A kill leaves whole lines and at most one torn one. A write that fails (a full disk) is taken back, as
    far as that can be done.

    Raises:
        OSError: if the rows could not be written.
    """
    left = memoryview(_lines(rows))
    with path.open("ab", buffering=0) as file:  # no buffer: what close() would still write is lost
        end = file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def write_lines(
    path: Path, rows: Sequence[Row], keep: Callable[[Path, bytes], object] = write_whole
) -> None:
    """Let a file hold these rows and nothing else: replaced by `keep`, or left alone if it does."""
    before = path.read_bytes() if path.exists() else b""
    if before != _lines(rows):
        keep(path, _lines(rows))


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()


def read_lines(path: Path, kind: type[_Row]) -> list[_Row]:
    """The rows of a file, but for a damaged end, which a killed run or a crash leaves.

    That is a last line without its line end, or one that is not JSON. The unit that it belongs to is not
    complete without it, and is run again.

    Raises:
        RunFolderError: if any other line is no row; the message names file and line.
    """
    if not path.exists():
        return []
    try:
        *lines, _torn = read_bytes(path, LARGEST_LOG).split(b"\n")
    except Unreadable as error:
        raise RunFolderError(str(error)) from None
    if lines and not _is_json(lines[-1]):
        lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(kind.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            column = ".".join(map(str, problem["loc"]))
            where = f" (column {column})" if column else ""
            raise RunFolderError(
                f"{path}, line {number}: no valid row{where}: {plain_words(problem['msg'])}; mend or "
                "remove the line, or start over with --fresh"
            ) from error
    return rows


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line, constants=True, unique=False)
    except Unreadable:
        return False
    return True


def to_frame(rows: Sequence[Row], kind: type[Row]) -> "polars.DataFrame":
    """A table with the columns of `kind`, in that order, also if there are no rows."""
    import polars

    return polars.DataFrame([_cells(row) for row in rows], schema=schema_of(kind))


def _cells(row: Row) -> dict[str, Any]:
    cells = row.model_dump()
    if isinstance(row, PromptRow):
        cells["metrics"] = [{"name": name, "value": value} for name, value in row.metrics.items()]
    return cells


def schema_of(kind: type[Row]) -> "polars.Schema":
    """The polars type of every column."""
    import polars

    types: dict[Any, Any] = {
        int: polars.Int64,
        float: polars.Float64,
        str: polars.String,
        bool: polars.Boolean,
        list[int]: polars.List(polars.Int64),
        list[str]: polars.List(polars.String),
        Metrics: polars.List(polars.Struct({"name": polars.String, "value": polars.Float64})),
    }

    def column_type(annotation: Any) -> Any:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return types[annotation if annotation in types else members[0]]

    columns = {name: column_type(field.annotation) for name, field in kind.model_fields.items()}
    return polars.Schema(columns)
