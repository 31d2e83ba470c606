"""The Parquet tables of a run: which schema they have, and how older ones are completed."""

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import RunFolderError
from experiments.records import SCHEMA_VERSION, Row, schema_of
from treespec.errors import Unreadable
from treespec.reading import open_file

if TYPE_CHECKING:
    import polars

__all__ = ["METADATA", "SCHEMA_KEY", "DamagedTable", "read_table"]

SCHEMA_KEY = "treespec_schema_version"
"""Key of the file's own metadata, for tables that have left their folder."""

METADATA = {SCHEMA_KEY: str(SCHEMA_VERSION)}
"""What a table that is written now says about itself."""

LARGEST_TABLE = 2**31
"""Bytes of a table."""

MOST_ROWS = 10**7
"""Steps of a run that decodes for days."""


class DamagedTable(RunFolderError):
    """A file that is no Parquet, or not whole."""


def read_table(path: Path, kind: type[Row]) -> "polars.DataFrame":
    """A table with exactly the columns of `kind`; what an older version did not record has its default.

    Args:
        path: of a Parquet file.
        kind: of its rows.

    Raises:
        DamagedTable: if the file cannot be read.
        RunFolderError: if it has a newer schema, lacks a column, or holds another type in one.
    """
    import polars as pl

    try:
        with open_file(path, LARGEST_TABLE):
            pass
        version = pl.read_parquet_metadata(path).get(SCHEMA_KEY, "1")
        newer = not version.isdecimal() or int(version) > SCHEMA_VERSION
        if newer:
            raise RunFolderError(
                f"{path} has schema version {version}, but this treespec reads versions up to "
                f"{SCHEMA_VERSION}; read it with the newer treespec that wrote it"
            )
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()  # from its footer alone
        if rows > MOST_ROWS:
            raise RunFolderError(f"{path} has {rows:,} rows, but at most {MOST_ROWS:,} are read")
        frame = pl.read_parquet(path)
    except RunFolderError:
        raise
    except Unreadable as error:
        raise DamagedTable(f"cannot be read: {error}") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DamagedTable(f"{path} cannot be read: {error}") from error
    columns = []
    for name, dtype in schema_of(kind).items():
        field = kind.model_fields[name]
        if name not in frame.columns:
            if field.is_required():
                raise RunFolderError(
                    f"{path} is no table of {kind.__name__}s: it has no column {name!r}"
                )
            columns.append(pl.lit(field.default, dtype=dtype).alias(name))
        elif frame.schema[name] not in (dtype, pl.Null):
            raise RunFolderError(
                f"{path}, column {name!r}: {frame.schema[name]}, but must be {dtype}"
            )
        else:
            columns.append(pl.col(name).cast(dtype))
    return frame.select(columns)
