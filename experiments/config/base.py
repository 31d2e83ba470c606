"""The simple types that all parts of a config share: numbers, texts, and names of laws and rules."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from treespec import plugins
from treespec.search.growth.keys import LARGEST_NUMBER
from treespec.tree import Law
from treespec.verify import RULE_OF_LAW

MOST_TIMED = 2**12
"""Nodes of a tree that is timed: attention over them takes 64 MB per head."""

MOST_TOKENS = 10**7
"""New tokens of a text: as many as the longest contexts hold."""

MOST_ROUNDS = 10_000
"""Repetitions of a prompt or of a measurement."""

LONGEST_FILE_NAME = 200
"""Bytes of a folder's name; file systems allow 255, and files written next to it have longer names."""


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of text, without control characters")
    return text


def _file_name(text: str) -> str:
    if not text.isprintable() or "/" in text or "\\" in text or text in (".", ".."):
        raise ValueError(
            "must be usable as the name of a folder: no slashes or control characters, and not '.' or "
            "'..' (`output` and --out set where the folder is)"
        )
    if len(text.encode()) > LONGEST_FILE_NAME:
        raise ValueError(f"must have at most {LONGEST_FILE_NAME} bytes: it names a folder")
    return text


Number = Annotated[int, Field(strict=True, ge=0, le=LARGEST_NUMBER)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS)]
Rounds = Annotated[int, Field(strict=True, ge=1, le=MOST_ROUNDS)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**62)]
Label = Annotated[
    str, Field(strict=True, min_length=1, max_length=LONGEST_FILE_NAME), AfterValidator(_line)
]
FileName = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_file_name)]

_LAWS = {
    Law.DETERMINISTIC: "the k most probable tokens, no randomness",
    Law.IID: "drawn independently from the draft's distribution",
    Law.WITHOUT_REPLACEMENT: "drawn from the draft's distribution, each token once",
    Law.TOP_THEN_SAMPLE: "the k - 1 most probable tokens, then one drawn",
    Law.HUB: "SpecHub's pairs around the most probable token",
}


def about_law(law: Law) -> str:
    """How a law chooses children, and the rule used with it by default."""
    return f"{_LAWS[law]} (usual rule: {RULE_OF_LAW[law]})"


class Named:
    """A string for which the schema lists the known names, with a line about each.

    Editors offer these names. Any other string is valid too, because plug-ins add names; `build` rejects
    unknown ones.
    """

    def __init__(self, what: str, known: Callable[[], Mapping[str, str]]) -> None:
        self._what, self._known = what, known

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema: a known name, or any string."""
        known = self._known()
        names = {"title": self._what, "enum": [*known], "enumDescriptions": [*known.values()]}
        return {"anyOf": [names, handler(core_schema)]}


LAW = Named("law", lambda: {str(law): about_law(law) for law in Law})
RULE = Named("rule", lambda: {name: part.about for name, part in plugins.parts("rule").items()})


def mark_of(name: str, *, lossless: bool, synthetic: bool) -> str:
    """What a method's name is followed by if its texts are not the target's; empty if it says so itself."""
    kind = "synthetic" if synthetic else "lossy"
    return "" if lossless or kind in name else f" ({kind})"
