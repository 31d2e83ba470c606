"""Read the Parquet tables of a run, and check their columns."""

import io
from pathlib import Path

import polars as pl

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.rows import SCHEMA_VERSION, Row, require_version, schema_of
from treespec.files import DATA_BYTES, open_file

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
    """Read a table with exactly the columns of `kind`."""
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
