"""Shapes in a few characters: `kary:2x3` on the command line and in configs; an example of every kind."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from treespec.experiments.config.base import MOST_NODES
from treespec.reading import brief

__all__ = ["EXAMPLES", "SPELLINGS", "examples_near", "is_spelled", "spelled"]

SPELLINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chain": ("chain:4", ("depth",)),
    "kary": ("kary:2x3", ("branching", "depth")),
    "chains": ("chains:2x4", ("width", "depth")),
    "expansion": ("expansion:3x2x1", ()),
    "optimal": ("optimal:16", ("size",)),
}
"""By the word before the colon: an example, and what its numbers are. An expansion takes any number."""

EXAMPLES = {
    "chain": "{kind: chain, depth: 4}",
    "kary": "{kind: kary, branching: 2, depth: 3}",
    "expansion": "{kind: expansion, branching: [3, 2, 1]}",
    "delayed_expansion": "{kind: delayed_expansion, chain: 2, branching: [3, 1]}",
    "independent_chains": "{kind: independent_chains, width: 2, depth: 4}",
    "parents": "{kind: parents, parents: [-1, 0, 0, 1]}",
    "paths": "{kind: paths, paths: [[0], [1], [0, 0]]}",
    "optimal": "{kind: optimal, rates: [0.6, 0.2, 0.1], size: 16}",
    "best": "{kind: best, max_size: 32}",
    "eagle2": "{kind: eagle2, k: 4, depth: 6, size: 16}",
    "opt_tree": "{kind: opt_tree, size: 16, depth: 6}",
    "dyspec": "{kind: dyspec, size: 16, depth: 6}",
    "specexec": "{kind: specexec, size: 16, branching: 4, depth: 6}",
    "equal_growth": "{kind: equal_growth, width: 4, depth: 6, size: 16}",
    "cost_aware": "{kind: cost_aware, size: 32, branching: 4, depth: 6}",
    "ddtree": "{kind: ddtree, size: 16, depth: 6}",
}
"""One of every kind, as configs write it."""

_KINDS = {"chains": "independent_chains"}
"""Kinds that are spelled otherwise."""

_USUAL = ("chain", "kary", "expansion")
"""Shown where nothing is close."""


def is_spelled(text: str) -> bool:
    """Whether a text begins as the spelling of a shape does."""
    word, colon, _ = text.strip().partition(":")
    return bool(colon) and (word in SPELLINGS or word in _KINDS.values())


def spelled(text: str) -> dict[str, Any]:
    """The mapping of a config that a spelling stands for; how many nodes it has is not looked at.

    Raises:
        ValueError: saying what is wrong.

    Example:
        >>> spelled("kary:2x3")
        {'kind': 'kary', 'branching': 2, 'depth': 3}
        >>> spelled("optimal:16")
        {'kind': 'optimal', 'rates': 'measured', 'size': 16}
    """
    if not is_spelled(text):
        raise ValueError("no shape is spelled so")
    kind, _, numbers = text.strip().partition(":")
    word = next((short for short, of in _KINDS.items() if of == kind), kind)
    values, names = _numbers(numbers), SPELLINGS[word][1]
    if names and len(values) != len(names):
        count = f"{len(names)} number{'s' * (len(names) > 1)} ({' x '.join(names)})"
        raise ValueError(f"it takes {count}, not {len(values)}")
    kind = _KINDS.get(word, word)
    given = {"rates": "measured"} if kind == "optimal" else {}
    if not names:
        return {"kind": kind, "branching": values}
    return {"kind": kind, **given, **dict(zip(names, values, strict=True))}


def _numbers(text: str) -> list[int]:
    """Whole numbers with x between them, none larger than any tree."""
    parts = text.split("x")
    if not all(re.fullmatch("-?[0-9]+", part) for part in parts):
        raise ValueError("its numbers are whole, with x between them")
    if any(len(part) > 9 or int(part) > MOST_NODES for part in parts):
        raise ValueError(f"a tree of more than {MOST_NODES:,} nodes: make it smaller")
    return [int(part) for part in parts]


def examples_near(shape: Any) -> str:
    """How a shape is written that was meant like this one: an example of each kind that is close.

    Args:
        shape: of a config, as it was read; anything.

    Example:
        >>> examples_near({"kind": "karry"})
        '{kind: kary, branching: 2, depth: 3} or kary:2x3'
    """
    kind = shape.get("kind") if isinstance(shape, Mapping) else str(shape).partition(":")[0]
    word = brief(kind, 60) if not isinstance(kind, str) else kind.strip()[:60]
    kinds = [_KINDS.get(word, word)]
    if kinds[0] not in EXAMPLES:
        near = difflib.get_close_matches(word, EXAMPLES, n=3, cutoff=0.5)
        kinds = near or list(_USUAL)
    short = {_KINDS.get(name, name): example for name, (example, _) in SPELLINGS.items()}
    return " or ".join(text for kind in kinds for text in (EXAMPLES[kind], short.get(kind)) if text)
