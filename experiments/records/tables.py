"""Read the Parquet tables of a run: check their schema, and refuse impossible rows."""

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import polars as pl

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.rows import SCHEMA_VERSION, Row, require_version, schema_of
from treespec.reading import in_json, open_file

__all__ = ["SCHEMA_KEY", "DamagedTable", "as_parquet", "read_table", "require_rows"]

SCHEMA_KEY = "treespec_schema_version"
"""Key of the schema version in a table's own metadata, for tables that have left their folder."""

LARGEST_TABLE = 2**31
"""Most bytes of a table."""

MOST_ROWS = 10**7
"""Most rows of a table: the steps of a run that decodes for days."""


class DamagedTable(RunFolderError):
    """A file that is not a Parquet file, or is incomplete."""


def as_parquet(frame: pl.DataFrame, **metadata: str) -> bytes:
    """A table as the bytes of a Parquet file that states the schema version of its rows.

    It is made in memory because polars raises errors of its own when a disk is full.

    Args:
        frame: the table.
        metadata: more entries for the table's own metadata.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={SCHEMA_KEY: str(SCHEMA_VERSION), **metadata})
    return buffer.getvalue()


def read_table(path: Path, kind: type[Row]) -> pl.DataFrame:
    """Read a table with exactly the columns of `kind`.

    Args:
        path: a Parquet file.
        kind: the type of its rows.

    Raises:
        DamagedTable: if the file cannot be read.
        RunFolderError: if it has another schema version, lacks a column, or has a column of another type.
    """
    try:
        with open_file(path, LARGEST_TABLE):
            pass
        # A table that another tool has rewritten does not state a version.
        version = pl.read_parquet_metadata(path).get(SCHEMA_KEY, SCHEMA_VERSION)
        require_version(path, version, "read it with the treespec that wrote it")
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()  # from its footer alone
        if rows > MOST_ROWS:
            raise RunFolderError(f"{path} has {rows:,} rows, but at most {MOST_ROWS:,} are read")
        frame = pl.read_parquet(path)
    except RunFolderError:
        raise
    except Unreadable as error:
        raise DamagedTable(str(error)) from None
    except OSError as error:
        raise DamagedTable(f"{path} cannot be read: {error.strerror or 'incomplete'}") from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
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


def require_rows(
    folder: Path, manifest: Mapping[str, Any], name: str, frame: pl.DataFrame, kind: type[Row]
) -> None:
    """Refuse impossible rows: with unknown methods, missing values, or impossible numbers.

    Args:
        folder: the run's folder.
        manifest: of the run.
        name: the table's name.
        frame: the table.
        kind: the type of its rows.

    Raises:
        RunFolderError: if there is one; names the table, the column and the value.
    """
    refuse = partial(_refuse, folder, name, frame)
    for key, known in (("method", "methods"), ("sampling", "samplings")):
        names = [entry["name"] for entry in manifest[known]]
        names += manifest.get("twins", ()) if key == "method" else ()
        refuse(~pl.col(key).is_in(names), key, f"none of the {known}")
    for column, annotated in kind.model_fields.items():
        types = (annotated.annotation, *get_args(annotated.annotation))
        value, least = pl.col(column), _LEAST_VALUES.get(column, 0)
        if type(None) not in types:
            refuse(value.is_null(), column, "missing")
        if float in types:
            odd = ~value.is_finite() | (value.abs() > _LARGEST_VALUE)
            refuse(odd, column, "not a number that can be measured")
        if list[int] in types:
            refuse(value.list.min() < least, column, f"below {least}")
        elif (int in types or float in types) and column not in _SIGNED:
            refuse(value < least, column, f"below {least}")
    columns = ["prompt", "sampling", "method", "repeat", "step"]
    duplicated = pl.struct([c for c in columns if c in frame.columns]).is_duplicated()
    refuse(duplicated, "method", "twice for a prompt")
    # Steps of methods that took turns are compared with their neighbours in time.
    if name == "steps" and manifest.get("together", 1) > 1:
        for column in ("at_s", "step_s"):
            refuse(pl.col(column).is_null(), column, "missing")
    if name == "prompts":
        succeeded = pl.col("error").is_null()
        for column in ("decode_s", "total_s"):
            refuse(succeeded & pl.col(column).is_null(), column, "missing")
        for column in ("new_tokens", "steps", "decode_s", "total_s"):
            refuse(succeeded & (pl.col(column) <= 0), column, "not above 0")


def _refuse(
    folder: Path, name: str, frame: pl.DataFrame, wrong: Any, column: str, why: str
) -> None:
    """Raise a RunFolderError for the first row where the polars expression `wrong` holds."""
    refused = frame.filter(wrong)
    if len(refused):
        row = refused.row(0, named=True)
        where = f"prompt {row['prompt']}, {row['sampling']}, {row['method']}"
        raise RunFolderError(
            f"{folder / name} (.parquet, or .jsonl of a run that is not finished) is damaged: the row of "
            f"{where} has {column} = {in_json(row[column])}, which is {why}; repair or remove it"
        )


_SIGNED = ("divergence_margin", "cpu_energy_net_j", "gpu_energy_net_j", "seed")
"""Columns that may be negative."""

_LEAST_VALUES = {"kept": 1, "size": 1, "parents": -1}
"""Least values of columns, or of the numbers in their lists; 0 for all others."""

_LARGEST_VALUE = 1e15
"""Larger than any time, energy or logit."""
