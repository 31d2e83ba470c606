"""The rows of a run (SCHEMA.md): JSON lines while it runs, Parquet when it is finished."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.schema_version import SCHEMA_VERSION
from treespec.files import (
    DATA_BYTES,
    append_whole,
    brief,
    open_file,
    parse_json,
    read_bytes,
    write_whole,
)
from treespec.reading_models import plain_words

READABLE_VERSIONS = (2, 3, 4)


SOURCES_JOINED = " + "
"""Separates the names of sources that drafted the same node."""

Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What a column of integers holds."""

Metrics = dict[str, float | None]
"""Metrics of plug-ins by name; in tables a list of names and values, so that their columns are the same."""


class Row(BaseModel):
    """A row. Unknown columns, missing columns without a default, and other types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: Int
    sampling: str
    method: str
    repeat: Int

    @property
    def unit(self) -> tuple[int, str, int]:
        """Prompt, sampling setting and repeat: the unit that is run, and resumed, as a whole."""
        return self.prompt, self.sampling, self.repeat


class PromptRow(Row):
    """One prompt, decoded by one method under one sampling setting. SCHEMA.md explains the columns."""

    prompt_id: str
    category: str | None
    order: Int
    prompt_tokens: Int
    new_tokens: Int
    tokens: list[Int]
    text: str
    steps: Int
    accepted: Int
    emitted: Int
    drafted: Int | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float | None
    draft_s: float | None
    verify_s: float | None
    accept_s: float | None
    commit_s: float | None
    equal_to_plain: bool | None
    first_divergence: Int | None
    divergence_margin: float | None
    error: str | None
    seed: Int
    rss_bytes: Int | None = None
    peak_rss_bytes: Int | None = None
    peak_cuda_bytes: Int | None = None
    cpu_energy_j: float | None = None
    cpu_energy_net_j: float | None = None
    gpu_energy_j: float | None = None
    gpu_energy_net_j: float | None = None
    metrics: Metrics = Field(default_factory=dict)
    alone_s: float | None = None
    alone_error: str | None = None
    fresh_error: str | None = None
    state: str | None = None
    off_target: float | None = None
    rounds_s: float | None = None


class StepRow(Row):
    """One step: a pass of the target. SCHEMA.md explains the columns."""

    step: Int
    size: Int
    depth: Int
    accepted: Int
    emitted: Int
    kept: Int
    path_ranks: list[Int]
    draft_s: float | None
    verify_s: float | None
    accept_s: float | None
    commit_s: float | None
    at_s: float | None = None
    step_s: float | None = None
    parents: list[Int] | None = None
    origins: list[str] | None = None
    spine: Int | None = None
    right: str | None = None
    fresh: str | None = None


class TreeRow(Row):
    """The tree of one step, with its tokens; kept for the first prompts. SCHEMA.md explains the columns."""

    step: Int
    parents: list[Int]
    tokens: list[Int]
    pieces: list[str]
    path: list[Int]
    bonus: Int
    bonus_piece: str


_Row = TypeVar("_Row", bound=Row)


def require_version(path: Path, version: object, way_out: str) -> None:
    if str(version) not in map(str, READABLE_VERSIONS):
        raise RunFolderError(
            f"{path} has schema version {brief(version, 60)}, but this treespec reads versions "
            f"{READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}; {way_out}"
        )


def append_lines(path: Path, rows: Sequence[Row]) -> None:
    """Append rows, and wait until they are on disk; a kill leaves whole lines and one truncated line."""
    append_whole(path, _lines(rows))


def write_lines(
    path: Path, rows: Sequence[Row], keep: Callable[[Path, bytes], object] = write_whole
) -> None:
    """Make a file hold exactly these rows: replace it with `keep`, unless it already does."""
    before = path.read_bytes() if path.exists() else b""
    if before != _lines(rows):
        keep(path, _lines(rows))


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()


def read_lines(path: Path, kind: type[_Row]) -> list[_Row]:
    """Read the rows of a file, except for a damaged end, which a killed run or a crash leaves.

    A damaged end is a last line without its line end, or one that is not JSON. Its unit is incomplete
    without it, and is run again.
    """
    if not path.exists():
        return []
    try:
        *lines, _truncated = read_bytes(path, DATA_BYTES).split(b"\n")
    except Unreadable as error:
        raise RunFolderError(str(error)) from None
    if lines:
        try:
            parse_json(lines[-1], constants=True, unique=False)
        except Unreadable:
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
                f"{path}, line {number}: not a valid row{where}: {plain_words(problem['msg'])}; repair or "
                "remove the line, or start over with --fresh"
            ) from error
    return rows


def to_frame(rows: Sequence[Row], kind: type[Row]) -> pl.DataFrame:
    return pl.DataFrame([_cells(row) for row in rows], schema=schema_of(kind))


def _cells(row: Row) -> dict[str, Any]:
    cells = row.model_dump()
    if isinstance(row, PromptRow):
        cells["metrics"] = [{"name": name, "value": value} for name, value in row.metrics.items()]
    return cells


def schema_of(kind: type[Row]) -> pl.Schema:
    types: dict[Any, Any] = {
        int: pl.Int64,
        Int: pl.Int64,
        float: pl.Float64,
        str: pl.String,
        bool: pl.Boolean,
        list[Int]: pl.List(pl.Int64),
        list[str]: pl.List(pl.String),
        Metrics: pl.List(pl.Struct({"name": pl.String, "value": pl.Float64})),
    }

    def column_type(annotation: Any) -> Any:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return types[annotation if annotation in types else members[0]]

    return pl.Schema(
        {name: column_type(field.annotation) for name, field in kind.model_fields.items()}
    )


SCHEMA_KEY = "treespec_schema_version"
"""Key of the schema version in a table's own metadata, for tables that have left their folder."""


class DamagedTable(RunFolderError):
    """A file that is not a Parquet file, or is incomplete."""


def as_parquet(frame: pl.DataFrame, **metadata: str) -> bytes:
    """A table as the bytes of a Parquet file that states the schema version of its rows.

    It is made in memory because polars raises errors of its own when a disk is full.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={SCHEMA_KEY: str(SCHEMA_VERSION), **metadata})
    return buffer.getvalue()


def read_table(path: Path, kind: type[Row]) -> pl.DataFrame:
    try:
        with open_file(path, DATA_BYTES):
            pass
        # A table that another tool has rewritten does not state a version.
        version = pl.read_parquet_metadata(path).get(SCHEMA_KEY, SCHEMA_VERSION)
        require_version(path, version, "read it with the treespec that wrote it")
        frame = pl.read_parquet(path)
    except RunFolderError:
        raise
    except Unreadable as error:
        raise DamagedTable(str(error)) from None
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DamagedTable(
            f"{path} cannot be read: it is not a Parquet file, or is incomplete"
        ) from error
    schema = schema_of(kind)
    for name, dtype in schema.items():
        if name not in frame.columns and not kind.model_fields[name].is_required():
            # Tables of earlier versions lack this column.
            empty = [] if kind.model_fields[name].default_factory is dict else None
            frame = frame.with_columns(pl.Series(name, [empty] * len(frame), dtype=dtype))
        if name not in frame.columns:
            raise RunFolderError(f"{path} is not a table of {path.stem}: it has no column {name!r}")
        if frame.schema[name] not in (dtype, pl.Null):
            raise RunFolderError(
                f"{path}, column {name!r}: {frame.schema[name]}, but must be {dtype}"
            )
    return frame.select(list(schema)).cast(schema)
