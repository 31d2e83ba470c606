"""The rows of a run (SCHEMA.md), as JSON lines while it runs and as Parquet when it is finished."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from experiments.errors import RunFolderError

if TYPE_CHECKING:
    import polars

__all__ = [
    "SCHEMA_VERSION",
    "PromptRow",
    "StepRow",
    "append_lines",
    "read_lines",
    "to_frame",
    "write_lines",
]

SCHEMA_VERSION = 1


class Row(BaseModel):
    """A row; an unknown or missing column, or one of another type, makes it invalid."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: int
    sampling: str
    method: str

    @property
    def unit(self) -> tuple[int, str]:
        """What is run, and resumed, as a whole."""
        return self.prompt, self.sampling


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


class StepRow(Row):
    """One step of our loop. SCHEMA.md explains the columns."""

    step: int
    size: int
    depth: int
    accepted: int
    emitted: int
    kept: int
    path_ranks: list[int]
    draft_s: float
    verify_s: float
    accept_s: float
    commit_s: float


_Row = TypeVar("_Row", bound=Row)


def append_lines(path: Path, rows: Sequence[Row]) -> None:
    """Append rows and wait until the disk has them. A kill leaves whole lines and at most one torn one."""
    with path.open("ab") as file:
        file.write(_lines(rows))
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, rows: Sequence[Row]) -> None:
    """Let a file hold these rows and nothing else: replaced atomically, or left alone if it does."""
    before = path.read_bytes() if path.exists() else b""
    if before != _lines(rows):
        temporary = path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        append_lines(temporary, rows)
        temporary.replace(path)


def _lines(rows: Sequence[Row]) -> bytes:
    return "".join(row.model_dump_json() + "\n" for row in rows).encode()


def read_lines(path: Path, kind: type[_Row]) -> list[_Row]:
    """The rows of a file, but for a last line without its end, which a killed run leaves.

    Raises:
        RunFolderError: if any other line is no row; the message names file and line.
    """
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(kind.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            column = ".".join(map(str, problem["loc"]))
            where = f" (column {column})" if column else ""
            raise RunFolderError(
                f"{path}, line {number}: no valid row{where}: {problem['msg']}; mend or remove the line, "
                "or start anew with --fresh"
            ) from None
    return rows


def to_frame(rows: Sequence[Row], kind: type[Row]) -> "polars.DataFrame":
    """A table with the columns of `kind`, in that order, also if there are no rows."""
    import polars

    types: dict[type, Any] = {
        int: polars.Int64,
        float: polars.Float64,
        str: polars.String,
        bool: polars.Boolean,
        list[int]: polars.List(polars.Int64),
    }

    def column_type(annotation: Any) -> Any:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return types[annotation if annotation in types else members[0]]

    schema = {name: column_type(field.annotation) for name, field in kind.model_fields.items()}
    return polars.DataFrame([row.model_dump() for row in rows], schema=schema)
