"""Acceptance estimates as JSON that can be read by hand."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from treespec.errors import Unreadable
from treespec.reading import brief, parse_json
from treespec.search.errors import InvalidTrace
from treespec.search.rates.counts import Counts
from treespec.search.rates.support import require_limits

if TYPE_CHECKING:
    from treespec.search.rates.estimate import AcceptanceEstimate

__all__ = ["read_json", "written"]

VERSION = 1
_SETTINGS = {
    "by": str, "law": str, "rule": str, "source": str, "interval": str, "level": float,
    "monotone": bool, "shrinkage": float, "seed": int,
}  # fmt: skip
_ORIGIN = ("sampling", "about")
"""Objects that may be missing: they came later."""
_COUNTS = ("hits", "trials", "mass")
_SHOWN = ("rates", "low", "high", "hits", "trials")
_DIGITS = 6
MOST_TRIALS = 2**53
"""Up to here floats count by one."""


def written(estimate: "AcceptanceEstimate") -> str:
    """The estimate; rows of numbers on a line each.

    Raises:
        InvalidTrace: if `sampling` or `about` is no plain data.
    """
    shown = {name: _rounded(getattr(estimate, name)) for name in _SHOWN}
    data: dict[str, Any] = {
        "kind": "acceptance",
        "version": VERSION,
        **{name: getattr(estimate, name) for name in _SETTINGS},
        **{name: dict(getattr(estimate, name)) for name in _ORIGIN},
        "warnings": list(estimate.warnings),
        **shown,
        "texts": {name: getattr(estimate.counts, name).tolist() for name in _COUNTS},
    }
    lines = []
    for name, value in data.items():
        if name == "texts":
            inner = ",\n".join(f'    "{key}": {json.dumps(rows)}' for key, rows in value.items())
            lines.append(f'  "texts": {{\n{inner}\n  }}')
            continue
        try:
            lines.append(f'  "{name}": {json.dumps(value, allow_nan=False)}')
        except (TypeError, ValueError) as error:
            raise InvalidTrace(
                f'"{name}" is no plain data, so it cannot be written: {error}'
            ) from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_json(text: str) -> dict[str, Any]:
    """Settings and counts.

    Raises:
        InvalidTrace, InvalidLimit: saying what is wrong.
    """
    try:
        data = parse_json(text)
    except Unreadable as error:
        raise InvalidTrace(f"not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != "acceptance":
        raise InvalidTrace('an estimate of acceptance is an object with "kind": "acceptance"')
    if data.get("version") != VERSION:
        raise InvalidTrace(
            f"version {brief(data.get('version'), 60)}, but this treespec reads {VERSION}"
        )
    settings: dict[str, Any] = {}
    for name, kind in _SETTINGS.items():
        value = data.get(name)
        if kind is float and type(value) is int:
            value = float(value) if abs(value) < 10**300 else value  # else refused next
        if type(value) is not kind:
            raise InvalidTrace(f'"{name}" must be of type {kind.__name__}, not {brief(value, 60)}')
        settings[name] = value
    if settings["by"] not in ("rank", "depth"):
        raise InvalidTrace(f'"by" must be "rank" or "depth", not {brief(settings["by"], 60)}')
    require_limits(settings["by"], None, None, settings["shrinkage"], None)
    for name in _ORIGIN:
        settings[name] = data.get(name, {})
        if not isinstance(settings[name], dict):
            raise InvalidTrace(f'"{name}" must be an object, not {brief(settings[name], 60)}')
    said = data.get("warnings")
    if not isinstance(said, list) or not all(isinstance(line, str) for line in said):
        raise InvalidTrace('"warnings" must be a list of texts')
    counts = _counts(data.get("texts"))
    levels = counts.hits.shape[1]
    if settings["by"] == "rank" and levels != 1:
        raise InvalidTrace(f'"by" is "rank", so "texts" must hold one level, but it has {levels}')
    return settings | {"counts": counts, "warnings": tuple(said)}


def _counts(texts: Any) -> Counts:
    arrays = {}
    for name in _COUNTS:
        try:
            given = np.array(texts[name], dtype=np.float64)
        except (TypeError, ValueError, KeyError, OverflowError):
            raise InvalidTrace(
                f'"texts" must hold numbers "{name}" [texts][levels][ranks]'
            ) from None
        if given.ndim != 3 or not given.size or not (given >= 0).all():
            raise InvalidTrace(
                f'"{name}" in "texts" must hold numbers of at least 0, nested thrice'
            )
        arrays[name] = given
    hits, trials, mass = (arrays[name] for name in _COUNTS)
    if not hits.shape == trials.shape == mass.shape:
        raise InvalidTrace('"hits", "trials" and "mass" in "texts" differ in shape')
    if (hits > trials).any() or (mass > trials + 1e-6).any() or not np.isfinite(trials).all():
        raise InvalidTrace('"texts" has more hits than trials')
    if (trials > MOST_TRIALS).any():
        raise InvalidTrace(f'"trials" in "texts" holds more than {MOST_TRIALS:,}')
    if (hits % 1).any() or (trials % 1).any():
        raise InvalidTrace('hits and trials in "texts" must be whole numbers')
    return Counts(hits.astype(np.int64), trials.astype(np.int64), mass)


def _rounded(array: np.ndarray) -> Any:
    return np.round(array, _DIGITS).tolist() if array.dtype.kind == "f" else array.tolist()
