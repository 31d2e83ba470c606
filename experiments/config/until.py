"""When a run may end before all of its prompts are decoded."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from treespec.experiments.config.base import Count
from treespec.reading_models import Strict

__all__ = ["Until", "UntilClear"]


class Until(Strict):
    """Look at the results after 8, 12, 18, 27, 40, 60, 90, ... prompts; end the run once they are clear.

    The prompts are those of a run without this key; their number is an upper limit. Either `decided` or
    `half_width` says when to end; `until: decided` is short for `until: {decided: true}`.
    """

    decided: Annotated[bool, Field(strict=True)] = False
    """End when trees and chains differ under every sampling setting: the interval of their speed ratio,
    corrected for looking repeatedly, excludes 1."""
    half_width: Annotated[float, Field(gt=0, le=10)] | None = None
    """End when half the width of the same interval is below this under every sampling setting: 0.03 for
    three percentage points. If trees or chains are missing, the interval of the best speculative method
    against plain decoding counts."""
    at_most: Count | None = None
    """Maximum number of prompts, in place of `prompts.count`; if prompts are excerpts, of files, because
    excerpts of one file are alike. Null for all prompts of the run."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.decided == (self.half_width is not None):
            raise ValueError(
                "give either `decided: true` or `half_width: 0.03`, not both or neither"
            )
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
