"""What all parts of a config share: mappings without unknown keys, and the simple types."""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Count", "Name", "Number", "Strict", "nearest", "plain_words"]

Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(strict=True, min_length=1)]


def nearest(word: str, allowed: list[str]) -> str:
    """`; did you mean 'x'?` with the allowed word that is spelt most alike, or nothing."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "json_invalid": "it is no JSON",
    "model_type": "must be an object",
    "dict_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def plain_words(problem: Mapping[str, Any]) -> str:
    """What pydantic found wrong with a value, as `must be ...`."""
    if problem["type"] in _WORDS:
        return _WORDS[problem["type"]]
    text = problem["msg"].removeprefix("Value error, ")
    text = re.sub(r"^(Input|Tuple|List|String|Dictionary) should", "must", text)
    return text.replace("a valid tuple", "a list").replace("after validation, not", "but has")


class Strict(BaseModel):
    """A mapping without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        unknown = [k for k in data if k not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            keys = list(cls.model_fields)
            raise PydanticCustomError(
                "unknown_key",
                "unknown key{hint} (keys here: {keys})",
                {
                    "key": str(unknown[0]),
                    "hint": nearest(str(unknown[0]), keys),
                    "keys": ", ".join(keys),
                },
            )
        return data
