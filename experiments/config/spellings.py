"""Short spellings of shapes (`kary:2x3`) for command line and configs, and an example of every kind."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from treespec import plugins
from treespec.files import brief
from treespec.search.growth.keys import MOST_NODES, GrowthSettings

SPELLINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chain": ("chain:4", ("depth",)),
    "kary": ("kary:2x3", ("branching", "depth")),
    "chains": ("chains:2x4", ("width", "depth")),
    "expansion": ("expansion:3x2x1", ()),
    "optimal": ("optimal:16", ("size",)),
}
"""By the word before the colon: an example, and the meaning of its numbers; `expansion` takes any count."""

EXAMPLES = {
    "chain": "{kind: chain, depth: 4}",
    "kary": "{kind: kary, branching: 2, depth: 3}",
    "expansion": "{kind: expansion, branching: [3, 2, 1]}",
    "delayed_expansion": "{kind: delayed_expansion, chain: 2, branching: [3, 1]}",
    "independent_chains": "{kind: independent_chains, width: 2, depth: 4}",
    "spine": "{kind: spine, depth: 4, siblings: 2}",
    "parents": "{kind: parents, parents: [-1, 0, 0, 1]}",
    "paths": "{kind: paths, paths: [[0], [1], [0, 0]]}",
    "optimal": "{kind: optimal, rates: [0.6, 0.2, 0.1], size: 16}",
    "best": "{kind: best, max_size: 32}",
}
"""An example of every shape, as written in configs; growths have theirs in their settings."""

_KINDS = {"chains": "independent_chains"}
"""Kinds whose spelling differs from their name in configs."""

_USUAL = ("chain", "kary", "expansion")
"""Kinds to show as examples if no kind is close."""


def examples() -> dict[str, str]:
    """An example of every kind of shape and of the built-in growths."""
    growths = {
        name: part.settings.example
        for name, part in plugins.parts("growth").items()
        if isinstance(part.settings, type) and issubclass(part.settings, GrowthSettings)
    }
    return EXAMPLES | growths


def is_spelled(text: str) -> bool:
    """Whether a text begins like the spelling of a shape."""
    word, colon, _ = text.strip().partition(":")
    return bool(colon) and (word in SPELLINGS or word in _KINDS.values())


def spelled(text: str) -> dict[str, Any]:
    """The mapping that a spelling stands for; does not check how many nodes the tree has.

    Example:
        >>> spelled("kary:2x3")
        {'kind': 'kary', 'branching': 2, 'depth': 3}
        >>> spelled("optimal:16")
        {'kind': 'optimal', 'rates': 'measured', 'size': 16}
    """
    if not is_spelled(text):
        raise ValueError("not a spelling of a shape")
    kind, _, numbers = text.strip().partition(":")
    word = next((short for short, name in _KINDS.items() if name == kind), kind)
    values, names = _numbers(numbers), SPELLINGS[word][1]
    if names and len(values) != len(names):
        count = f"{len(names)} number{'s' * (len(names) > 1)} ({' x '.join(names)})"
        raise ValueError(f"it takes {count}, not {len(values)}")
    kind = _KINDS.get(word, word)
    implied = {"rates": "measured"} if kind == "optimal" else {}
    given = dict(zip(names, values, strict=True)) if names else {"branching": values}
    return {"kind": kind, **implied, **given}


def _numbers(text: str) -> list[int]:
    """Parse whole numbers separated by x, none larger than the largest tree."""
    parts = text.split("x")
    if not all(re.fullmatch("-?[0-9]+", part) for part in parts):
        raise ValueError("it takes whole numbers separated by x")
    if any(len(part) > 9 or int(part) > MOST_NODES for part in parts):
        raise ValueError(f"a tree of more than {MOST_NODES:,} nodes: make it smaller")
    return [int(part) for part in parts]


def examples_near(shape: Any) -> str:
    """Examples of the kinds of shapes closest to an invalid one, to show how they are written.

    Example:
        >>> examples_near({"kind": "karry"})
        '{kind: kary, branching: 2, depth: 3} or kary:2x3'
    """
    kind = shape.get("kind") if isinstance(shape, Mapping) else str(shape).partition(":")[0]
    word = brief(kind, 60) if not isinstance(kind, str) else kind.strip()[:60]
    known, kinds = examples(), [_KINDS.get(word, word)]
    if kinds[0] not in known:
        kinds = difflib.get_close_matches(word, known, n=3, cutoff=0.5) or list(_USUAL)
    short = {_KINDS.get(name, name): example for name, (example, _) in SPELLINGS.items()}
    return " or ".join(text for kind in kinds for text in (known[kind], short.get(kind)) if text)
