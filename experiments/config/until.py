"""When a run may end before all of its prompts are decoded."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from treespec.experiments.config.base import Count
from treespec.reading_models import Strict

__all__ = ["Until", "UntilClear"]


class Until(Strict):
    """Look at the run after 8, 12, 18, 27, 40, 60, 90, ... prompts, and end it early if it is clear enough.

    The prompts are those of a run without it, and their number is a limit. It is `decided` or `half_width`
    that says when to end; `until: decided` is short for `until: {decided: true}`.
    """

    decided: Annotated[bool, Field(strict=True)] = False
    """End when trees and chains are told apart under every sampling setting: the interval of the look,
    which allows for all looks together, excludes 1."""
    half_width: Annotated[float, Field(gt=0, le=10)] | None = None
    """End when half the interval of trees against chains, likewise, is narrower than this under every
    sampling setting: 0.03 for three points; without both sides, that of the best speculative method against
    plain decoding."""
    at_most: Count | None = None
    """Prompts at most, in place of `prompts.count`; where prompts are excerpts, files, because excerpts of
    one file are alike. Null for all that the run has."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.decided == (self.half_width is not None):
            raise ValueError("it takes either `decided: true` or `half_width: 0.03`")
        return self


def _written_out(data: Any) -> Any:
    if isinstance(data, str) and data != "decided":
        raise ValueError("must be `decided`, or a mapping such as {half_width: 0.03}")
    return {"decided": True} if data == "decided" else data


_Short = Annotated[Literal["decided"], Field(description="Short for `{decided: true}`.")]

UntilClear = Annotated[
    Until | None, BeforeValidator(_written_out, json_schema_input_type=Until | _Short | None)
]
"""A rule as a mapping, or the word `decided`."""
