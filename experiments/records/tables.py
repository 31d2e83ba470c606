"""The Parquet tables of a run: which schema they have, and which rows cannot be."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from treespec.errors import Unreadable
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.rows import SCHEMA_VERSION, Row, require_version, schema_of
from treespec.reading import in_json, open_file

if TYPE_CHECKING:
    import polars

__all__ = ["METADATA", "SCHEMA_KEY", "DamagedTable", "read_table", "require_rows"]

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
    """A table with exactly the columns of `kind`.

    Args:
        path: of a Parquet file.
        kind: of its rows.

    Raises:
        DamagedTable: if the file cannot be read.
        RunFolderError: if it has another schema, lacks a column, or holds another type in one.
    """
    import polars as pl

    try:
        with open_file(path, LARGEST_TABLE):
            pass
        # One that another tool has written again says nothing of it.
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
        raise DamagedTable(f"{path} cannot be read: {error.strerror or 'not whole'}") from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DamagedTable(f"{path} cannot be read: it is no Parquet file, or not whole") from error
    schema = schema_of(kind)
    for name, dtype in schema.items():
        if name not in frame.columns and not kind.model_fields[name].is_required():
            # A column that tables of earlier versions did not have.
            empty = [] if kind.model_fields[name].default_factory is dict else None
            frame = frame.with_columns(pl.Series(name, [empty] * len(frame), dtype=dtype))
        if name not in frame.columns:
            raise RunFolderError(f"{path} is no table of {path.stem}: it has no column {name!r}")
        if frame.schema[name] not in (dtype, pl.Null):
            raise RunFolderError(
                f"{path}, column {name!r}: {frame.schema[name]}, but must be {dtype}"
            )
    return frame.select(list(schema)).cast(schema)


def require_rows(
    folder: Path,
    manifest: Mapping[str, Any],
    tables: "Mapping[str, tuple[polars.DataFrame, type[Row]]]",
) -> None:
    """Refuse rows that cannot be: of methods that the run has not, without or with impossible numbers.

    Args:
        folder: of the run.
        manifest: of the run.
        tables: rows and their kind, by the name of their file.

    Raises:
        RunFolderError: naming the table, the column and the value.
    """
    import polars as pl

    for name, (frame, kind) in tables.items():
        for key, known in (("method", "methods"), ("sampling", "samplings")):
            names = [entry["name"] for entry in manifest[known]]
            names += manifest.get("twins", ()) if key == "method" else ()
            _refuse(folder, name, frame, ~pl.col(key).is_in(names), key, f"none of the {known}")
        for column, annotated in kind.model_fields.items():
            optional = type(None) in get_args(annotated.annotation)
            if not optional:
                _refuse(folder, name, frame, pl.col(column).is_null(), column, "missing")
            least = None if column in _SIGNED else 1 if column in _POSITIVE else 0
            inner = {
                int: pl.col(column),
                float: pl.col(column),
                list[int]: pl.col(column).list.min(),
            }
            kinds = [
                part
                for part in (annotated.annotation, *get_args(annotated.annotation))
                if part in inner
            ]
            if kinds and kinds[0] is float:
                odd = ~pl.col(column).is_finite() | (pl.col(column).abs() > _LARGEST)
                _refuse(folder, name, frame, odd, column, "no number that can be measured")
            if kinds and least is not None:
                low = -1 if column == "parents" else least
                _refuse(folder, name, frame, inner[kinds[0]] < low, column, f"below {low}")
        unit = [
            "prompt",
            "sampling",
            "method",
            "repeat",
            *(["step"] if "step" in frame.columns else []),
        ]
        _refuse(
            folder, name, frame, pl.struct(unit).is_duplicated(), "method", "twice for a prompt"
        )
        if (
            name == "steps" and manifest.get("together", 1) > 1
        ):  # whose neighbours in time are sought
            for column in ("at_s", "step_s"):
                _refuse(folder, name, frame, pl.col(column).is_null(), column, "missing")
        if name == "prompts":
            fine = pl.col("error").is_null()
            for column in ("decode_s", "total_s"):
                _refuse(folder, name, frame, fine & pl.col(column).is_null(), column, "missing")
            for column in ("new_tokens", "steps", "decode_s", "total_s"):
                _refuse(folder, name, frame, fine & (pl.col(column) <= 0), column, "not above 0")


def _refuse(
    folder: Path, name: str, frame: "polars.DataFrame", wrong: Any, column: str, what: str
) -> None:
    """Raise for the first row where `wrong` holds."""
    refused = frame.filter(wrong)
    if len(refused):
        row = refused.row(0, named=True)
        where = f"prompt {row['prompt']}, {row['sampling']}, {row['method']}"
        raise RunFolderError(
            f"{folder / name} (.parquet, or .jsonl of a run that is not finished) is damaged: the row of "
            f"{where} has {column} = {in_json(row[column])}, which is {what}; mend or remove it"
        )


_SIGNED = ("divergence_margin", "cpu_energy_net_j", "gpu_energy_net_j", "seed")
"""Columns that may be negative."""
_POSITIVE = ("kept", "size")
_LARGEST = 1e15
"""No time, energy or logit is larger."""
