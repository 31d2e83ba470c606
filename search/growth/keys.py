"""The keys of growths in configs: their types, and what the settings of all growths share.

A growth's settings stand in its file, and are registered with it (`treespec.plugins.growth`).
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field

from treespec.draft.growth import MOST_DRAFTED
from treespec.plugins import Settings

LARGEST_NUMBER = 10**9
"""Upper bound of numbers that only limit how much is read: prompts, tokens of a prompt, characters."""

MOST_NODES = 2**14
"""Nodes of a tree in a config or on the command line, root included: a mask over them takes 256 MB."""

MOST_POOL = MOST_DRAFTED
"""Bound on the nodes that a growth drafts in a step, before it keeps the best."""

LONGEST_TEXT = 4096
"""Characters of a text: the length limit of paths."""

MEASURED = "measured"
"""In place of a file: what the `search` of the same config measures."""


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a zero byte")
    return text


Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_NUMBER)]
Nodes = Annotated[int, Field(strict=True, ge=1, le=MOST_NODES)]
Name = Annotated[
    str, Field(strict=True, min_length=1, max_length=LONGEST_TEXT), AfterValidator(_plain)
]

Size = Annotated[int, Field(ge=2, le=MOST_NODES, strict=True)]
"""Nodes, the root included."""

Verified = Annotated[Size, Field(description="Maximum verified nodes, root included.")]
Levels = Annotated[Nodes, Field(description="Maximum levels below the root.")]
CalibrationFile = Annotated[
    Name | None,
    Field(
        description="File that maps draft probabilities to acceptance, or `measured`; null for none."
    ),
]
Prefix = Annotated[
    Count | None,
    Field(
        description="Tokens before the tree; null for the mean of the run's texts if measured, else that "
        "of `latency`."
    ),
]


class GrowthSettings(Settings):
    """Settings of a built-in growth. Those that are null are left out when it is made."""

    example: ClassVar[str]
    """The growth as written in configs."""

    named: ClassVar[str]
    """The tree's part of a method's name, with keys in braces."""

    widest: ClassVar[str] = ""
    """The key that says how many children a node gets; empty for at most `branching`, if they fit."""

    @property
    def label(self) -> str:
        """The tree's part of a method's name."""
        return self.named.format(**dict(self))

    @property
    def children(self) -> int:
        """Maximum number of children of a node."""
        given: Any = self
        if self.widest:
            return getattr(self, self.widest)
        return min(getattr(given, "branching", None) or given.size, given.size - 1)

    def unmeasured(self) -> "GrowthSettings":
        """A growth of the same laws and rules that waits for no measurement."""
        waiting = {"calibration", "latency", "prefix"} & set(type(self).model_fields)
        return self.model_copy(update=dict.fromkeys(waiting))

    def _require_pool(self, width: int, depth: int) -> Self:
        """Reject `depth` levels of `width` nodes, each with `width` children, that are too many nodes."""
        if width + (depth - 1) * width**2 > MOST_POOL:
            raise ValueError(
                f"more than {MOST_POOL:,} nodes are drafted in a step: {width} children for each of "
                f"{width} nodes on {depth} levels; take fewer"
            )
        return self
