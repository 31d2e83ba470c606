"""The words that fill the slots of templates, and what is to be said about where they come from."""

import hashlib
import importlib
import json
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from treespec.files import parse_yaml, read_text

WORDNET = Path("/usr/share/wordnet/index.noun")
"""Where Debian's package wordnet-base keeps its nouns."""

WORDNET_LICENCE = "WordNet 3.0 licence, Copyright 2006 by Princeton University"

TEMPLATES = Path(__file__).with_name("templates.yaml")

MODULES = (
    *(
        "bisect",
        "calendar",
        "collections",
        "colorsys",
        "csv",
        "datetime",
        "decimal",
        "difflib",
        "fractions",
    ),
    *(
        "functools",
        "glob",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "os.path",
        "random",
        "re",
    ),
    *(
        "shutil",
        "statistics",
        "string",
        "struct",
        "tempfile",
        "textwrap",
        "time",
        "unicodedata",
        "zlib",
    ),
)
"""Modules of the standard library whose functions are named in prompts."""

_SLOT = re.compile(r"\{([a-z_]+)\d*\}")
_COMMON_NOUN = re.compile(r"[a-z]{3,14}")


@dataclass(frozen=True)
class Words:
    """Templates by category, and the words of their slots.

    Args:
        templates: prompts with slots such as `{noun}`; `{noun2}` is another noun.
        slots: the words of each kind of slot, or a range of numbers.
        nouns_from: where the nouns come from.
    """

    templates: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...] | range]
    nouns_from: str

    @property
    def from_wordnet(self) -> bool:
        """Whether the nouns come from WordNet."""
        return self.nouns_from.startswith("WordNet")

    @cached_property
    def sha256(self) -> str:
        """Digest of all templates and words."""
        slots = {kind: list(words) for kind, words in self.slots.items()}
        text = json.dumps([self.templates, slots], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def prompt(self, rng: random.Random) -> str:
        """A template, drawn at random, with its slots filled.

        Words of one kind differ within a template.
        """
        drawn: dict[str, str] = {}

        def word(slot: re.Match[str]) -> str:
            if slot[0] not in drawn:
                others = {
                    found for name, found in drawn.items() if _SLOT.sub(r"\1", name) == slot[1]
                }
                words = self.slots[slot[1]]
                drawn[slot[0]] = str(rng.choice(words))
                while drawn[slot[0]] in others and len(words) > len(others):
                    drawn[slot[0]] = str(rng.choice(words))
            return drawn[slot[0]]

        text = _SLOT.sub(word, rng.choice(self.templates))
        return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def read_words(wordnet: Path = WORDNET) -> Words:
    """The shipped templates, with nouns of WordNet if it is installed, else of a short list of our own."""
    data = parse_yaml(read_text(TEMPLATES))
    slots = {kind: _values(words) for kind, words in data["slots"].items()}
    nouns_from = "a list of our own (templates.yaml)"
    if wordnet.is_file():
        slots["noun"], nouns_from = _wordnet_nouns(wordnet), "WordNet 3.0 (Debian's wordnet-base)"
    slots["cap_noun"] = tuple(word.capitalize() for word in slots["noun"] if isinstance(word, str))
    slots["module"] = tuple(sorted(n for n in sys.stdlib_module_names if not n.startswith("_")))
    slots["function"] = _functions()
    templates = tuple(t for of_category in data["templates"].values() for t in of_category)
    return Words(templates, slots, nouns_from)


def _values(words: list[str] | str) -> tuple[str, ...] | range:
    """The words of a list, or the numbers of a range such as `2..12`."""
    if isinstance(words, str):
        first, last = map(int, words.split(".."))
        return range(first, last + 1)
    return tuple(words)


def _wordnet_nouns(index: Path) -> tuple[str, ...]:
    """Nouns of one word that occur in WordNet's tagged texts, so that rare ones are left out.

    A line is `lemma n synsets pointers POINTERS senses tagged OFFSETS` (wndb(5WN)).
    """
    nouns = []
    for line in read_text(index).splitlines():
        lemma, _, rest = line.partition(" ")
        if _COMMON_NOUN.fullmatch(lemma):
            fields = rest.split()
            tagged = int(fields[4 + int(fields[2])])
            if tagged:
                nouns.append(lemma)
    return tuple(nouns)


def _functions() -> tuple[str, ...]:
    """Names of functions of the standard library, with their modules."""
    found = []
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [
            n for n in dir(module) if not n.startswith("_")
        ]
        found += [f"{name}.{n}" for n in public if callable(getattr(module, n, None))]
    return tuple(sorted(found))
