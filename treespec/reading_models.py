"""Validate external data against pydantic models, and report each problem with path, value and remedy."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from treespec.errors import Unreadable
from treespec.reading import brief, parse_json
from treespec.reading_words import plain_words

__all__ = ["Strict", "joined", "misplaced", "nearest", "only", "problems", "read_model"]

Model = TypeVar("Model", bound=BaseModel)

PROBLEMS_SHOWN = 20

_TAGS = ("kind", "source")
"""Keys that select the model of a union."""


class Strict(BaseModel):
    """A mapping without unknown keys. The docstring below a field describes it in the JSON schema."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Current names of keys by former name. A former name is refused; the error gives the current one."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        unknown = [k for k in data if k not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            key, keys = str(unknown[0])[:80], list(cls.model_fields)
            context = {"key": key, "keys": keys, "now": cls.RENAMED.get(key)}
            raise PydanticCustomError("unknown_key", "unknown key", context)
        return data


def nearest(word: str, allowed: list[str]) -> str:
    """`; did you mean 'x'?` with the allowed word of most similar spelling; empty if none is similar."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def misplaced(place: str, value: Any, said: str) -> PydanticCustomError:
    """The error that a validator raises for something wrong inside a value.

    Args:
        place: path inside the value, such as `64.1`; empty for the value itself.
        value: the wrong value at this place.
        said: what is wrong with it.
    """
    return PydanticCustomError(
        "misplaced", "{said}", {"place": place, "at": _At(value), "said": said}
    )


class _At:
    """Wraps a value in the context of an error. pydantic converts the whole context to text, which fails
    for an integer of 5,000 digits."""

    def __init__(self, value: Any) -> None:
        self.value = value


def only(allowed: object, said: str) -> BeforeValidator:
    """A validator that accepts a single value of a field, such as the version of a file.

    Args:
        allowed: the accepted value.
        said: the error message for all other values.
    """

    def require(value: object) -> object:
        if type(value) is not type(allowed) or value != allowed:
            raise ValueError(said)
        return value

    return BeforeValidator(require)


def read_model(model: type[Model], text: str | bytes, constants: bool = False) -> Model:
    """Parse a JSON text and validate it with a model.

    Args:
        model: the model of the data.
        text: the JSON text.
        constants: whether NaN and infinities are allowed; see `treespec.reading.parse_json`.

    Raises:
        Unreadable: if the text is not JSON or does not fit the model; the error names the first problem,
            the value there and what is allowed.
    """
    try:
        data = parse_json(text, constants=constants)
    except Unreadable as error:
        raise Unreadable(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise Unreadable(f"it must be an object, not {brief(data, 60)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Unreadable(problems(data, error, "it")[0]) from None


def problems(data: Any, error: ValidationError, whole: str) -> list[str]:
    """One line per problem, as `path = value: what is wrong, what is allowed`.

    Args:
        data: the validated data.
        error: pydantic's error.
        whole: name for the data as a whole.
    """
    places = {
        _walk(data, problem["loc"])[0]: problem
        for problem in reversed(_causes(error.errors(include_url=False)))
    }
    ordered = list(reversed(places.values()))
    lines = [_explain(data, problem, whole) for problem in ordered[:PROBLEMS_SHOWN]]
    if len(ordered) > PROBLEMS_SHOWN:
        lines.append(f"... and {len(ordered) - PROBLEMS_SHOWN} more")
    return lines


def _causes(problems: Sequence[Any]) -> list[Any]:
    """The problems without lists that are "too short" only because their items are wrong."""
    locations = [problem["loc"] for problem in problems]

    def is_consequence(problem: Any) -> bool:
        loc = problem["loc"]
        return problem["type"] == "too_short" and any(
            len(inner) > len(loc) and inner[: len(loc)] == loc for inner in locations
        )

    return [problem for problem in problems if not is_consequence(problem)]


def _explain(data: Any, problem: Any, whole: str) -> str:
    path, value = _walk(data, problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "unknown_key":
        key, keys, now = context["key"], context["keys"], context["now"]
        if now is not None:
            return (
                f"{joined(path, key)}: unknown key; {joined(path, key)} is now {joined(path, now)}"
            )
        return (
            f"{joined(path, key)}: unknown key{nearest(key, keys)} (keys here: {', '.join(keys)})"
        )
    if kind == "union_tag_invalid":
        tags = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
        hint, key = nearest(context["tag"][:80], tags), _discriminator(context)
        unknown = f"unknown {key} {brief(context['tag'], 60)}{hint}"
        return f"{joined(path, key)}: {unknown} ({key}s: {', '.join(tags)})"
    if kind == "union_tag_not_found":
        return f"{path}: a mapping with a '{_discriminator(context)}' is needed, not {brief(value)}"
    if kind == "missing":
        return f"{joined(path, problem['loc'][-1])} is missing"
    if kind == "misplaced":
        path = joined(path, context["place"]) if context["place"] else path
        value = context["at"].value
    written = "null" if value is None else brief(value)
    return f"{path or whole} = {written}: {plain_words(problem['msg'])}"


def _discriminator(context: Any) -> str:
    """The key that selects the model of a union."""
    return str(context.get("discriminator", "kind")).strip("'")


def _walk(data: Any, loc: Sequence[int | str]) -> tuple[str, Any]:
    """The path and value at a pydantic location, which holds the tags of unions between the keys."""
    path, tagged = "", False
    for part in loc:
        tag = isinstance(data, dict) and not tagged and part in map(data.get, _TAGS)
        inside = isinstance(data, dict | list) and part in (
            data if isinstance(data, dict) else range(len(data))
        )
        if inside and not tag:
            data, path = data[part], joined(path, part)
        tagged = tag
    return path, data


def joined(path: str, part: int | str) -> str:
    """A path extended by a key or an index, as in `methods[3].shape`."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part
