"""Questions of one's own: which methods a run compares with which (`compare`)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from treespec.experiments.errors import ConfigError
from treespec.reading_models import Strict
from treespec.search.growth.keys import Name


class Pick(Strict):
    """The methods to which all of these apply. Values are patterns: `*` and `?` stand for any text."""

    name: Name | None = None
    """Name of the method, such as `recycling *`."""
    source: Name | None = None
    """Draft source, such as `suffix_tree`."""
    group: Name | None = None
    """`plain`, `chain`, `tree` or `assisted`."""
    rule: Name | None = None
    """Acceptance rule, such as `rrsw`."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("names nothing: give at least one of name, source, group, rule")
        return self


ShortPick = Annotated[Name, Field(description="A pattern of names, or a group such as `plain`.")]


class Compared(Strict):
    """A question: is the best method on the left faster than the best one on the right?"""

    left: ShortPick | Pick
    """The methods on one side: a pattern of names (`recycling *`), a group (`plain`), or a mapping such as
    `{source: suffix_tree}`."""
    right: ShortPick | Pick
    """The methods on the other side."""


@dataclass(frozen=True)
class Picked:
    """What can be asked of a method."""

    name: str
    group: str
    source: str | None
    rules: Sequence[str]


def picked(side: str | Mapping[str, Any], method: Picked) -> bool:
    """Whether a method is on this side of a question, as the config writes it."""
    if isinstance(side, str):
        return _matches(method.name, side) or side == method.group
    values: dict[str, Iterable[str | None]] = {
        "name": [method.name],
        "source": [method.source],
        "group": [method.group],
        "rule": method.rules,
    }
    return all(
        any(value is not None and _matches(value, pattern) for value in values[key])
        for key, pattern in side.items()
        if pattern is not None
    )


def _matches(value: str, pattern: str) -> bool:
    """Names may contain brackets, so that `fnmatch` would not do."""
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), value))


def label_of_side(side: str | Mapping[str, Any]) -> str:
    """A side in sentences: its pattern, or its patterns with their keys, except for the source's."""
    if isinstance(side, str):
        return side
    given = {key: pattern for key, pattern in side.items() if pattern is not None}
    return ", ".join(v if k == "source" else f"{k} {v}" for k, v in given.items())


def require_answerable(compared: Sequence[Compared], methods: Sequence[Picked]) -> None:
    """Refuse questions that the methods of a run cannot answer.

    Raises:
        ConfigError: if a side picks no method, or both sides pick the same one.
    """
    for i, question in enumerate(compared):
        sides = question.model_dump()
        names = {key: [m.name for m in methods if picked(sides[key], m)] for key in sides}
        for key, found in names.items():
            if not found:
                known = ", ".join(m.name for m in methods)
                raise ConfigError(
                    f"compare[{i}].{key} = {sides[key]!r} picks none of the methods: {known}"
                )
        if both := [name for name in names["left"] if name in names["right"]]:
            raise ConfigError(
                f"compare[{i}]: {both[0]} is on both sides: narrow one of the patterns"
            )
