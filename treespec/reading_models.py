"""Check data of files against pydantic models; each problem is told with its path, value and remedy."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from treespec.errors import TreespecError, Unreadable
from treespec.files import DATA_BYTES, brief, parse_json, read_bytes

Model = TypeVar("Model", bound=BaseModel)

FirstVersion = Annotated[
    Literal[1], BeforeValidator(lambda given: given if type(given) is int else str(given))
]
"""Version 1 of a file, and not `true`, which equals 1."""

PROBLEMS_SHOWN = 20
_TAGS = ("kind", "source")
"""Keys that select the model of a union."""
RENAMED_MODELS_KEYS = {"grow": "enlarge"}
"""Keys of the mapping `models` of a config: former name to current name."""


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
            key = str(unknown[0])[:80]
            context = {"key": key, "keys": list(cls.model_fields), "now": cls.RENAMED.get(key)}
            raise PydanticCustomError("unknown_key", "unknown key", context)
        return data


def read_model(model: type[Model], text: str | bytes, constants: bool = False) -> Model:
    """Parse a JSON text and validate it with a model; for `constants` see `parse_json`.

    Raises:
        Unreadable: if it is not JSON or does not fit, with the first problem and what is allowed.
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


def read_form(path: Path, error: type[TreespecError], way_out: str = "", form: Any = Any) -> Any:
    """Read a JSON file of our own.

    Args:
        path: the file.
        error: the class of the error to raise, if the file cannot be read or does not fit.
        way_out: what the user can do, for the message.
        form: a type that pydantic can check. An object may hold more keys than a model names.

    Returns:
        The data, in which a missing key, when it is asked for, raises `error`.
    """

    class Data(dict[str, Any]):
        def __missing__(self, key: str) -> Any:
            raise error(f"{path} is damaged: {brief(key, 60)} is missing{advice}")

    def checked(data: Any) -> Any:
        if isinstance(data, dict):
            return Data((key, checked(value)) for key, value in data.items())
        return [checked(value) for value in data] if isinstance(data, list) else data

    advice = f"; {way_out}" if way_out else ""
    data = None
    try:
        data = parse_json(read_bytes(path, DATA_BYTES), constants=True)
        TypeAdapter(form).validate_python(data, strict=True)
    except ValidationError as wrong:
        raise error(f"{path} is damaged: {problems(data, wrong, 'it')[0]}{advice}") from None
    except Unreadable as problem:
        begin = "" if str(problem).startswith(str(path)) else f"{path} is damaged: not JSON: "
        raise error(f"{begin}{problem}{advice}") from None
    return checked(data)


def with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """A config or an older file's `about`, with the current names of the keys of its mapping `models`."""
    models = data.get("models")
    if not isinstance(models, dict):
        return data
    return data | {
        "models": {RENAMED_MODELS_KEYS.get(key, key): value for key, value in models.items()}
    }


def problems(data: Any, error: ValidationError, whole: str) -> list[str]:
    """One line per problem, as `path = value: what is wrong, what is allowed`.

    Args:
        data: the validated data.
        error: pydantic's error.
        whole: name for the data as a whole.
    """
    found = error.errors(include_url=False)
    wrong_items = {p["loc"][:i] for p in found for i in range(len(p["loc"]))}
    # A list whose items are wrong is also said to be too short.
    found = [p for p in found if p["type"] != "too_short" or p["loc"] not in wrong_items]
    places = {_walk(data, p["loc"])[0]: p for p in reversed(found)}
    ordered = list(reversed(places.values()))
    lines = [_explain(data, problem, whole) for problem in ordered[:PROBLEMS_SHOWN]]
    more = len(ordered) - PROBLEMS_SHOWN
    return [*lines, f"... and {more} more"] if more > 0 else lines


def _explain(data: Any, problem: Any, whole: str) -> str:
    path, value = _walk(data, problem["loc"])
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "unknown_key":
        key, keys, now = (context[name] for name in ("key", "keys", "now"))
        hint = f"{nearest(key, keys)} (keys here: {', '.join(keys)})"
        if now is not None:
            hint = f"; {joined(path, key)} is now {joined(path, now)}"
        return f"{joined(path, key)}: unknown key{hint}"
    tag = str(context.get("discriminator", "kind")).strip("'")
    if kind == "union_tag_invalid":
        tags = [name.strip(" '") for name in context["expected_tags"].split(",")]
        unknown = f"unknown {tag} {brief(context['tag'], 60)}{nearest(context['tag'][:80], tags)}"
        return f"{joined(path, tag)}: {unknown} ({tag}s: {', '.join(tags)})"
    if kind == "union_tag_not_found":
        return f"{path}: a mapping with a '{tag}' is needed, not {brief(value)}"
    if kind == "missing":
        return f"{joined(path, problem['loc'][-1])} is missing"
    written = "null" if value is None else brief(value)
    return f"{path or whole} = {written}: {plain_words(problem['msg'])}"


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


_WORDS = (
    (r"Input should be a valid integer.*", "must be an integer"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"Input should be a valid string.*", "must be text"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (r"Input should be (?:an object|a valid (?:dictionary|mapping)).*", "must be a mapping"),
    (r"Input should be a valid (?:list|tuple|array).*", "must be a list"),
    (r"String should have at least 1 character", "must not be empty"),
    (r"Extra inputs are not permitted", "is unknown"),
    (r"Field required", "is missing"),
    (r"Invalid JSON.*", "it is not JSON"),
    (r"(?:Value|Assertion) error, (.*)", r"\1"),
    (r"(?:Input|Tuple|List|String|Dictionary) should (.*)", r"must \1"),
)


def plain_words(message: str) -> str:
    """A pydantic message rephrased as `must be ...`.

    Example:
        >>> plain_words("Input should be a valid integer, unable to parse string as an integer")
        'must be an integer'
    """
    for pattern, words in _WORDS:
        if match := re.fullmatch(pattern, message, re.DOTALL):
            return match.expand(words).replace(" after validation", "")
    return message


def nearest(word: str, allowed: Sequence[str]) -> str:
    """`; did you mean 'x'?` with the allowed word of most similar spelling; empty if none is similar."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def joined(path: str, part: int | str) -> str:
    """A path extended by a key or an index, as in `methods[3].shape`."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    return f"{path}.{part}" if path else part
