"""What all parts of a config share: mappings without unknown keys, and the simple types."""

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Count", "Name", "Number", "Strict", "nearest"]

Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(strict=True, min_length=1)]


def nearest(word: str, allowed: list[str]) -> str:
    """`; did you mean 'x'?` with the allowed word that is spelt most alike, or nothing."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


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
