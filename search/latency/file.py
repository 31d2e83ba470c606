"""Latency tables as text: JSON in milliseconds, read strictly and written for human readers.

    {"version": 1,
     "about": {...},
     "disturbed": "5 of 5 rounds were disturbed: ...",
     "batches": {"1": {
       "verify_ms": {"64": {"1": [18.4, 18.6], "16": [27.5, 27.6]}, "256": {...}},
       "commit_ms": ..., "rest_ms": ...,
       "laws": {"deterministic": {"level_ms": ..., "first_ms": ..., "accept_ms": ..., ...}}}}}

A table is one number (any size), `{"size": time}`, or `{"prefix": {"size": time}}`; a time is a number, a
list of measurements, or a list of the measurements of each round (`[[18.4, 18.6], [], [18.3]]`), where all
tables share the rounds. `first_ms` and `plain_ms` do not depend on a size: they are a number, a list, or
`{"prefix": time}`. Only `verify_ms` and, for each law, `level_ms` are required; omitted tables count as no
time, except that an omitted `decide_ms` (for trees that grow) is unknown, and `first_ms` and `plain_ms` are
then derived from other tables. The law `"any"` stands for all laws. `disturbed` is present only if another
process used the machine during the measurement; it is a sentence that says so.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from numbers import Real
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from treespec.errors import Unreadable
from treespec.files import brief
from treespec.reading_models import FirstVersion, Strict, problems, read_model, with_new_names
from treespec.search.errors import InvalidLatency
from treespec.search.latency.interpolation import Curve, Table
from treespec.search.latency.step_parts import StepParts

Batches: TypeAlias = dict[int, dict[str, StepParts]]
"""Times by batch size and law."""

VERSION = 1
UNIT = "_ms"

AXES = {
    "verify": "size", "commit": "size", "rest": "size", "level": "width", "draft": "width", "first": "",
    "draw": "number of nodes", "assemble": "size", "accept": "size", "plain": "", "decide": "size",
}  # fmt: skip
"""The tables, and what their sizes count; empty for tables without sizes."""

SHARED = ("verify", "commit", "rest")
"""Tables that all laws share."""

ADVICE = {
    "verify": "profile larger trees (`treespec profile --sizes`), or ask for smaller ones",
    "level": "profile larger trees (`treespec profile --sizes`), ask for narrower ones, or enter one "
    "number if it holds for every width",
    "draft": "measure wider levels (or give one number, if it holds for every width), or ask for narrower "
    "trees",
    "draw": "profile again (`treespec profile` always times the further children of one node, and with a "
    "size of 3 W + 1 or more those of W nodes), or ask for narrower trees",
}
"""The way out for requests outside of a table's range."""


def table_of(
    name: str, times: Mapping[int | None, Mapping[int | None, Sequence[Any]]], scale: float = 1.0
) -> Table:
    """A table from measurements by prefix and size, None standing for all: times, or those of each round.

    `scale`: seconds in their unit.
    """
    by_prefix: dict[int | None, Curve] = {}
    for prefix, of_sizes in times.items():
        samples: dict[int | None, Sequence[float]] = {}
        rounds: dict[int | None, Sequence[int]] = {}
        for size, measured in of_sizes.items():
            lists = [(one,) if isinstance(one, float) else one for one in measured]
            samples[size] = tuple(time * scale for of_round in lists for time in of_round)
            if not isinstance(measured[0], float):
                rounds[size] = tuple(
                    number for number, of_round in enumerate(lists) for _ in of_round
                )
        advice = ADVICE.get(name, "measure them (`treespec profile --sizes`), or ask for less")
        by_prefix[prefix] = Curve(name, AXES[name] or "prefix", samples, advice, rounds)
    return Table(name, by_prefix)


def _key(key: Any, least: int = 1) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", str(key)) or int(key) < least:
        raise ValueError(f"the key {brief(key, 60)} must be an integer of at least {least}")
    return int(key)


def _time(time: Any) -> float:
    number = isinstance(time, Real) and not isinstance(time, bool)
    if not number or not 0 <= time < inf:  # pyrefly: ignore[unsupported-operation]
        raise ValueError(f"{brief(time, 60)}: a time must be a number of at least 0")
    return float(time)


def _samples(value: Any) -> Sequence[Any]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    times = value if isinstance(value, list | tuple) else [value]
    is_round = [isinstance(time, list | tuple) for time in times]
    if any(is_round) and not all(is_round):
        raise ValueError(f"{brief(value, 60)} mixes times with lists of the times of rounds")
    if not any(times if any(is_round) else [times]):
        raise ValueError("a list of times is empty, but needs at least one time")
    if any(is_round):
        return tuple(tuple(map(_time, round_times)) for round_times in times)
    return tuple(map(_time, times))


def _each(
    table: Mapping[Any, Any], read: Callable[[Any], Any], least: int
) -> dict[int | None, Any]:
    """The entries of a table, read; an error begins with the key."""
    entries: dict[int | None, Any] = {}
    for key, value in table.items():
        try:
            entries[_key(key, least)] = read(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return entries


def _by_size(value: Any) -> dict[int | None, Sequence[Any]]:
    if not isinstance(value, Mapping):
        return {None: _samples(value)}
    return _each(_not_empty(value), _samples, 1)


def _sized(value: Any, info: ValidationInfo) -> Table:
    """A table that may depend on a size, in any of its forms."""
    inner = value.values() if isinstance(value, Mapping) else []
    nested = [isinstance(entry, Mapping) for entry in inner]
    if any(nested) and not all(nested):
        raise ValueError("mixes times by size with tables by prefix")
    return _named(info, _each(value, _by_size, 0) if any(nested) else {None: _by_size(value)})


def _unsized(value: Any, info: ValidationInfo) -> Table:
    """A table that depends on the prefix alone."""
    if not isinstance(value, Mapping):
        return _named(info, {None: _by_prefix(value)})
    return _named(info, _each(_not_empty(value), _by_prefix, 0))


def _named(info: ValidationInfo, times: Mapping[int | None, Any]) -> Table:
    """The table of a field: its name says which one it is, and whether its times are milliseconds."""
    field = str(info.field_name)
    return table_of(field.removesuffix(UNIT), times, 1e-3 if field.endswith(UNIT) else 1.0)


def _by_prefix(value: Any) -> dict[int | None, Sequence[Any]]:
    if isinstance(value, Mapping):
        raise ValueError("is a table by size, but this time does not depend on one")
    return {None: _samples(value)}


def _not_empty(value: Any) -> Any:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be an object with at least one entry")
    return value


Sized = Annotated[Any, PlainValidator(_sized)]
Unsized = Annotated[Any, PlainValidator(_unsized)]
Count = Annotated[int, BeforeValidator(_key)]
Entries = BeforeValidator(_not_empty)


class _Law(Strict):
    level_ms: Sized
    first_ms: Unsized = None
    draw_ms: Sized = None
    assemble_ms: Sized = None
    accept_ms: Sized = None
    plain_ms: Unsized = None
    decide_ms: Sized = None
    sampling: str = ""
    rule: str = ""


class _Batch(Strict):
    verify_ms: Sized
    commit_ms: Sized = None
    rest_ms: Sized = None
    laws: Annotated[dict[str, _Law], Entries]


class _File(Strict):
    version: FirstVersion
    batches: Annotated[dict[Count, _Batch], Entries]
    about: dict[str, Any] = Field(default_factory=dict)
    disturbed: Annotated[str, Field(min_length=1)] | None = None


class _Typed(Strict):
    """The arguments of `LatencyModel.from_tables`."""

    verify: Sized
    commit: Sized
    rest: Sized
    draft: Sized
    first: Unsized = None
    draw: Sized
    assemble: Sized
    accept: Sized
    plain: Unsized = None
    batch: Count


def typed_tables(tables: Mapping[str, Any], law: str, batch: int) -> Batches:
    """The times for `LatencyModel.from_tables`: tables in seconds, for one law and batch size."""
    given = {name: value for name, value in tables.items() if value is not None} | {"batch": batch}
    try:
        typed = _Typed.model_validate(given)
    except ValidationError as error:
        raise InvalidLatency(f"from_tables: {problems(given, error, 'it')[0]}") from None
    checked = _tables(typed)
    return {typed.batch: {law: StepParts(level=checked.pop("draft"), **checked)}}


def read_json(text: str, source: str) -> tuple[Batches, dict[str, Any], str | None]:
    """The times by batch size in a JSON text, their origin (`about`), and what disturbed them.

    Unknown keys, duplicate keys and NaN are refused.
    """
    try:
        file = read_model(_File, text)
    except Unreadable as error:
        raise InvalidLatency(f"{source}: {error}") from None
    batches: Batches = {}
    for batch, entry in file.batches.items():
        shared = _tables(entry)
        batches[batch] = {
            name: StepParts(
                **shared, **_tables(law), sampling=law.sampling or None, rule=law.rule or None
            )
            for name, law in entry.laws.items()
        }
    return dict(sorted(batches.items())), with_new_names(file.about), file.disturbed


def write_json(
    times: Mapping[int, Mapping[str, StepParts]],
    about: Mapping[str, Any],
    disturbed: str | None = None,
) -> str:
    """Times by batch size and law as JSON, with a line for the measurements of each size."""
    batches = {}
    for batch, of_laws in times.items():
        laws: dict[str, Any] = {}
        for name, law in of_laws.items():
            texts = {key: getattr(law, key) for key in ("sampling", "rule") if getattr(law, key)}
            laws[name] = texts | _plain_tables(law, [key for key in AXES if key not in SHARED])
        batches[str(batch)] = _plain_tables(next(iter(of_laws.values())), SHARED) | {"laws": laws}
    sentence = {} if disturbed is None else {"disturbed": disturbed}
    data = {"version": VERSION, "about": dict(about), **sentence, "batches": batches}
    return "\n".join(_lines(data, "")) + "\n"


def _tables(entry: BaseModel) -> dict[str, Any]:
    """The tables that an entry has, by name."""
    return {key.removesuffix(UNIT): value for key, value in entry if isinstance(value, Table)}


def _plain_tables(law: StepParts, names: Iterable[str]) -> dict[str, Any]:
    """These tables as plain data in milliseconds."""
    plain = {}
    for name in names:
        table: Table | None = getattr(law, name, None)
        if table is not None:
            by_prefix = {str(prefix): _plain(curve) for prefix, curve in table.curves.items()}
            plain[name + UNIT] = by_prefix[str(None)] if None in table.curves else by_prefix
    return plain


def _plain(curve: Curve) -> Any:
    by_size = {
        size: _plain_times(times, curve.rounds.get(size)) for size, times in curve.samples.items()
    }
    return by_size[None] if curve.anywhere else {str(size): by_size[size] for size in by_size}


def _plain_times(times: Sequence[float], rounds: Sequence[int] | None) -> Any:
    """One time, a list of times, or a list for each round, in milliseconds."""
    shown = [float(f"{1e3 * time:.6g}") for time in times]
    if rounds is None:
        return shown[0] if len(shown) == 1 else shown
    lists: list[list[float]] = [[] for _ in range(1 + max(rounds))]
    for time, number in zip(shown, rounds, strict=True):
        lists[number].append(time)
    return lists


def _lines(data: Any, indent: str) -> list[str]:
    """JSON with one line for each innermost entry."""
    if not isinstance(data, dict) or not data:
        return [json.dumps(data, allow_nan=False)]
    lines = ["{"]
    for i, (key, value) in enumerate(data.items()):
        first_line, *more_lines = _lines(value, indent + " ")
        comma = "," if i < len(data) - 1 else ""
        inner = [f"{indent} {json.dumps(key)}: {first_line}", *more_lines]
        lines += [*inner[:-1], inner[-1] + comma]
    return [*lines, indent + "}"]
