"""The rows of a run, so that two runs can be compared."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

MEASURED = ("_s", "_bytes", "_j")
"""How columns end that differ from run to run: seconds, memory, energy."""

SHOWN = 3


def rows_without_times(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows of a finished run by table, without what a clock or a meter said.

    Args:
        folder: of the run.

    Raises:
        FileNotFoundError: if the tables are not there.
    """
    import polars as pl

    tables = sorted(folder.glob("*.parquet"))
    if not tables:
        raise FileNotFoundError(f"{folder} has no tables: the run is not finished")
    found = {}
    for path in tables:
        frame = pl.read_parquet(path)
        kept = [name for name in frame.columns if not name.endswith(MEASURED)]
        found[path.stem] = frame.select(kept).to_dicts()
    return found


def differences(folder: Path, reference: Path) -> list[str]:
    """In what a finished run is not like another one: manifest, tables, and logs beside tables."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if manifest["finished"] is None:
        return ["the manifest does not say that the run is finished"]
    found, expected = rows_without_times(folder), rows_without_times(reference)
    wrong = []
    for name in sorted(found.keys() | expected.keys()):
        own, right = found.get(name, []), expected.get(name, [])
        pairs = enumerate(zip(own, right, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if len(own) != len(right):
            wrong.append(f"{name}: {len(own)} rows instead of {len(right)}")
        elif first is not None:
            keys = [key for key in right[first] if own[first].get(key) != right[first][key]]
            wrong.append(f"{name}, row {first}: other {', '.join(keys[:SHOWN]) or 'columns'}")
        lines = (folder / f"{name}.jsonl").read_bytes().count(b"\n")
        if lines != len(own):
            wrong.append(f"{name}: {lines} lines in the log, {len(own)} rows in the table")
    doubled = [key for key, count in Counter(map(_key, found["prompts"])).items() if count > 1]
    if doubled:
        wrong.append(f"prompts: {doubled[0]} appears twice")
    return wrong


def finished_lines(folder: Path, rows: int) -> set[bytes]:
    """The lines of the log that belong to finished prompts, as they stand, times included.

    Args:
        folder: of a run that may have been killed: a last line without its end does not count.
        rows: of a finished unit; one with fewer lines is not finished.
    """
    path = folder / "prompts.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    units = Counter(unit_of(line) for line in lines)
    return {line for line in lines if units[unit_of(line)] == rows}


def unit_of(line: bytes) -> tuple[int, str, int]:
    """Prompt, sampling setting and repeat of a line of a log."""
    row = json.loads(line)
    return row["prompt"], row["sampling"], row.get("repeat", 0)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["prompt"], row["sampling"], row.get("repeat", 0), row["method"]
