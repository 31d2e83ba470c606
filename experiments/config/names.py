"""Names of laws and acceptance rules, as the schema of configs lists them."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from treespec import plugins
from treespec.tree import Law
from treespec.verify import RULE_OF_LAW

__all__ = ["LAW", "RULE", "about_law"]

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

    Args:
        what: what the names are of, such as `law`.
        known: returns the line about each name.
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
