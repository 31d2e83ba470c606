"""Latency tables as text: JSON in milliseconds, read strictly, written so that a person can read it.

    {"version": 1,
     "about": {...},
     "batches": {"1": {
       "verify_ms": {"64": {"1": [18.4, 18.6], "16": [27.5, 27.6]}, "256": {...}},
       "commit_ms": ..., "rest_ms": ...,
       "laws": {"deterministic": {"level_ms": ..., "first_ms": ..., "accept_ms": ..., ...}}}}}

A table is one number (any size), `{"size": time}`, or `{"prefix": {"size": time}}`; a time is a number or a
list of measurements. `first_ms` and `plain_ms` know no size: a number, a list, or `{"prefix": time}`. Only
`verify_ms` and, for each law, `level_ms` are needed; what is left out takes no time. The law `"any"` stands
for all.
"""

import json
import operator
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from treespec.errors import Unreadable
from treespec.reading import brief, parse_json, read_text
from treespec.search.latency.errors import InvalidLatency
from treespec.search.latency.interpolation import Curve, Samples, Table
from treespec.search.latency.tables import BatchTimes, LawTimes

__all__ = ["model_of_tables", "read_file", "read_json", "write_json"]

Batches = dict[int, BatchTimes]
"""Times by batch size."""

VERSION = 1
UNIT = "_ms"

SHARED = {"verify": "size", "commit": "size", "rest": "size"}
OF_LAW = {
    "level": "width",
    "first": "",
    "draw": "number of nodes",
    "assemble": "size",
    "accept": "size",
    "plain": "",
}
"""Tables, and what their sizes count; nothing for those that know only prefixes."""

NEEDED = ("verify", "level")
MAY_MISS = ("first", "plain")
"""Left out, they are the sum of other parts; all others take no time then."""

ADVICE = {
    "verify": "profile larger trees (`treespec profile --sizes`), or ask for smaller ones",
    "level": "profile larger trees (`treespec profile --sizes`), ask for narrower ones, or type one "
    "number if it holds for every width",
    "draft": "measure wider levels (or give one number, if it holds for every width), or ask for narrower "
    "trees",
    "draw": "profile anew (`treespec profile` always times the further children of one node, and with a "
    "size of 3 W + 1 or more those of W nodes), or ask for narrower trees",
}

MOST_COUNT = 10**9
"""Sizes, prefixes and batches."""
LONGEST_COUNT = 10

LARGEST = 1e12
"""Times are below this, in the unit of the text."""


def model_of_tables(
    shared: Mapping[str, Any],
    of_law: Mapping[str, Any],
    law: str,
    batch: int,
) -> Batches:
    """What `LatencyModel.from_tables` is made of: tables in seconds, for one law and batch size."""
    reader = _Reader("from_tables", 1.0, "")
    tables = {name: reader.table(name, name, value, SHARED[name]) for name, value in shared.items()}
    own = {}
    for name, value in of_law.items():
        said = _argument(name)
        own[name] = None if value is None else reader.table(said, said, value, OF_LAW[name])
    batch = reader.count("batch", batch)
    laws = {law: LawTimes(**own)}  # pyrefly: ignore[bad-argument-type]  (only first and plain may be None)
    return {batch: BatchTimes(**tables, laws=laws)}


def read_file(path: str | Path) -> tuple[Batches, dict[str, Any]]:
    """What `LatencyModel.load` is made of.

    Raises:
        InvalidLatency: if there is none, or it holds something else.
    """
    try:
        text = read_text(path)
    except Unreadable as error:
        raise InvalidLatency(str(error)) from None
    return read_json(text, str(path))


def read_json(text: str, source: str) -> tuple[Batches, dict[str, Any]]:
    """The times in a JSON text by batch size, and where they are from.

    Unknown keys, keys that stand twice, and NaN are refused.
    """
    reader = _Reader(source, 1e-3, UNIT)
    data = reader.parse(text)
    reader.keys("", data, ("version", "batches"), ("about",))
    if data["version"] != VERSION or isinstance(data["version"], bool):
        reader.fail(
            "version", f"= {_short(data['version'])}, but this treespec reads version {VERSION}"
        )
    about = data.get("about", {})
    if not isinstance(about, dict):
        reader.fail("about", f"= {_short(about)}, but must be an object")
    batches = {}
    for key, value in reader.items("batches", data["batches"]):
        batch = reader.count("batches", key)
        batches[batch] = _batch(reader, f"batches.{key}", value)
    return dict(sorted(batches.items())), about


def write_json(times: Mapping[int, BatchTimes], about: Mapping[str, Any]) -> str:
    """Times by batch size as JSON: one line for those of one size."""
    batches = {}
    for batch, own in times.items():
        laws = {}
        for name, law in own.laws.items():
            said = {key: getattr(law, key) for key in ("sampling", "rule") if getattr(law, key)}
            laws[name] = said | _tables(law, OF_LAW)
        batches[str(batch)] = _tables(own, SHARED) | {"laws": laws}
    data = {"version": VERSION, "about": dict(about), "batches": batches}
    return "\n".join(_lines(data, "")) + "\n"


def _batch(reader: "_Reader", path: str, data: Any) -> BatchTimes:
    tables = reader.tables(path, data, SHARED, ("laws",), ())
    laws: dict[str, LawTimes] = {}
    for name, value in reader.items(f"{path}.laws", data["laws"]):
        own = reader.tables(f"{path}.laws.{name}", value, OF_LAW, (), ("sampling", "rule"))
        said = {key: value[key] for key in ("sampling", "rule") if key in value}
        for key, text in said.items():
            if not isinstance(text, str):
                reader.fail(f"{path}.laws.{name}.{key}", f"= {_short(text)}, but must be text")
        laws[name] = LawTimes(**own, **said)
    return BatchTimes(**tables, laws=laws)


class _Reader:
    """Reads tables, and names the place of what is wrong with them.

    Args:
        source: the file, or the function that was called.
        scale: seconds in a unit of the text.
        unit: what names of tables end with.
    """

    def __init__(self, source: str, scale: float, unit: str) -> None:
        self.source, self.scale, self.unit = source, scale, unit

    def fail(self, path: str, problem: str) -> NoReturn:
        """Raise, naming the place."""
        place = f"{self.source}: {path}" if path else self.source
        raise InvalidLatency(f"{place} {problem}")

    def parse(self, text: str) -> Any:
        """The object in a text."""
        try:
            return parse_json(text)
        except Unreadable as error:
            if error.line is not None:
                self.fail(f"line {error.line}, column {error.column}:", f"no JSON: {error.said}")
            self.fail("", f"is no JSON: {error.said}")

    def keys(self, path: str, data: Any, needed: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Refuse all but an object with the needed keys and none but these and the others."""
        if not isinstance(data, dict):
            self.fail(path, f"= {_short(data)}, but must be an object")
        for key in data:
            if key not in needed and key not in others:
                known = ", ".join((*needed, *others))
                self.fail(
                    f"{path}.{key[:60]}".strip("."), f"is an unknown key (keys here: {known})"
                )
        for key in needed:
            if key not in data:
                self.fail(f"{path}.{key}".strip("."), "is missing")

    def items(self, path: str, data: Any) -> list[tuple[str, Any]]:
        """The entries of an object that has some."""
        if not isinstance(data, dict) or not data:
            self.fail(path, f"= {_short(data)}, but must be an object with at least one entry")
        return list(data.items())

    def tables(
        self,
        path: str,
        data: Any,
        known: Mapping[str, str],
        needed: tuple[str, ...],
        others: tuple[str, ...],
    ) -> dict[str, Any]:
        """The tables of an object; those left out take no time."""
        must = tuple(name + self.unit for name in known if name in NEEDED)
        may = tuple(name + self.unit for name in known if name not in NEEDED)
        self.keys(path, data, (*must, *needed), (*may, *others))
        found: dict[str, Any] = {}
        for name, axis in known.items():
            key = name + self.unit
            if key in data:
                found[name] = self.table(name, f"{path}.{key}", data[key], axis)
            else:
                found[name] = None if name in MAY_MISS else self.table(name, key, 0.0, axis)
        return found

    def table(self, name: str, path: str, value: Any, axis: str) -> Table:
        """A table in any of its forms."""
        by_prefix: dict[int | None, Any] = {None: value}
        if isinstance(value, Mapping):
            if not value:
                self.fail(path, "has no entries, but needs at least one time")
            nested = [isinstance(inner, Mapping) for inner in value.values()]
            if axis and any(nested) and not all(nested):
                self.fail(path, "mixes times by size with tables by prefix")
            if not axis or all(nested):
                by_prefix = {self.count(path, key, 0): inner for key, inner in value.items()}
        return Table(
            name,
            {
                prefix: self._curve(
                    name, path if prefix is None else f"{path}.{prefix}", inner, axis
                )
                for prefix, inner in by_prefix.items()
            },
        )

    def count(self, path: str, key: Any, least: int = 1) -> int:
        """A size, prefix or batch: a number in text, or an integer."""
        try:
            if isinstance(key, bool) or (isinstance(key, str) and len(key) > LONGEST_COUNT):
                raise ValueError
            number = int(key) if isinstance(key, str) else operator.index(key)
            if (isinstance(key, str) and str(number) != key) or not least <= number <= MOST_COUNT:
                raise ValueError
        except (TypeError, ValueError):
            self.fail(
                path, f"has the key {_short(key)}, but keys are integers in {least}..{MOST_COUNT:,}"
            )
        return number

    def _curve(self, name: str, path: str, value: Any, axis: str) -> Curve:
        advice = ADVICE.get(name, "measure them (`treespec profile --sizes`), or ask for less")
        if isinstance(value, Mapping):
            if not axis:
                self.fail(path, "is a table by size, but this time does not depend on one")
            if not value:
                self.fail(path, "has no entries, but needs at least one time")
            samples: dict[int | None, Samples] = {
                self.count(path, key): self._samples(f"{path}.{key}", inner)
                for key, inner in value.items()
            }
            return Curve(name, axis, samples, advice)
        return Curve(name, axis or "prefix", {None: self._samples(path, value)}, advice)

    def _samples(self, path: str, value: Any) -> Samples:
        value = value.tolist() if isinstance(value, np.ndarray) else value
        times = value if isinstance(value, list | tuple) else [value]
        if not times:
            self.fail(path, "is an empty list, but needs at least one time")
        seconds = []
        for time in times:
            number = isinstance(time, Real) and not isinstance(time, bool)
            if not number or not 0 <= time < LARGEST:  # pyrefly: ignore[unsupported-operation]
                self.fail(path, f"= {_short(time)}, but a time is a number of at least 0")
            seconds.append(float(time) * self.scale)
        return tuple(seconds)


def _argument(table: str) -> str:
    """What `from_tables` calls a table."""
    return "draft" if table == "level" else table


def _tables(owner: Any, known: Mapping[str, str]) -> dict[str, Any]:
    """The tables as plain data in milliseconds."""
    found = {}
    for name in known:
        table: Table | None = getattr(owner, name)
        if table is not None:
            by_prefix = {prefix: _plain(curve) for prefix, curve in table.curves.items()}
            bare = None in by_prefix
            found[name + UNIT] = (
                by_prefix[None] if bare else {str(p): c for p, c in by_prefix.items()}
            )
    return found


def _plain(curve: Curve) -> Any:
    by_size = {
        size: [float(f"{1e3 * time:.6g}") for time in times]
        for size, times in curve.samples.items()
    }
    short = {size: times[0] if len(times) == 1 else times for size, times in by_size.items()}
    return short[None] if curve.anywhere else {str(size): times for size, times in short.items()}


def _lines(data: Any, indent: str) -> list[str]:
    """JSON with one line for each innermost entry."""
    if not isinstance(data, dict) or not data:
        return [json.dumps(data, allow_nan=False)]
    lines = ["{"]
    for i, (key, value) in enumerate(data.items()):
        first, *others = _lines(value, indent + " ")
        comma = "," if i < len(data) - 1 else ""
        inner = [f"{indent} {json.dumps(key)}: {first}", *others]
        lines += [*inner[:-1], inner[-1] + comma]
    return [*lines, indent + "}"]


def _short(value: Any) -> str:
    return brief(value, 60)
