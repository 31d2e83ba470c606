"""The trained heads that come with treespec, by name."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files("treespec"))) / "heads"
"""One folder for each head: config.json, weights in bfloat16, and README.md, its card."""


def shipped_heads() -> tuple[str, ...]:
    """The names of the heads: the target's, a hyphen, and the family's.

    Example:
        >>> "embedded-eagle3" in shipped_heads()
        True
    """
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))


def place_of_head(source: str) -> str:
    """The folder of a shipped head; any other source as it is."""
    return str(FOLDER / source) if source in shipped_heads() else source
