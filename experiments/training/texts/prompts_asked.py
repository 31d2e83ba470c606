"""Prompts that a target is asked to answer: filled templates, beginnings of files, or a folder of texts."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from treespec.experiments.training.corpus import Corpus, read_corpus, standard_library
from treespec.experiments.training.texts.chat import Chat
from treespec.experiments.training.texts.words import WORDNET_LICENCE, Words

LONGEST_INVENTED = 96
"""Tokens within which the target must end a prompt that it invents."""

FEWEST_WORDS, MOST_WORDS = 2, 6
"""First words of a template that the target is given to invent a prompt."""

SHORTEST_CODE, LONGEST_CODE = 16, 96
"""Tokens of a prompt that is a beginning of code."""


@dataclass(frozen=True)
class Begun:
    """A prompt, or the beginning of one that the target has to complete first.

    Args:
        ids: token ids.
        words: of a beginning, the words in it that are the user's; None for a whole prompt.
    """

    ids: tuple[int, ...]
    words: str | None = None


class Prompts(Protocol):
    """Where prompts come from."""

    @property
    def licences(self) -> Mapping[str, str]:
        """Licences of what prompts are made of."""
        ...

    def about(self) -> dict[str, Any]:
        """What the prompts depend on, for the recipe."""
        ...

    def begin(self, index: int, rng: random.Random) -> Begun:
        """The prompt of a text; all that is random in it comes from `rng`."""
        ...

    def end(self, begun: Begun, completion: Sequence[int]) -> tuple[int, ...] | None:
        """The whole prompt, once the target has completed its beginning; None if it did not end it."""
        ...


@dataclass(frozen=True)
class TemplatePrompts:
    """Templates filled with words; a share of them is only begun, and invented by the chat model itself.

    A model that is given the beginning of a user's message goes on as users did in its training data
    (Magpie, arXiv:2406.08464, which gives it no words at all).

    Args:
        chat: the target's chat template.
        words: templates and words.
        invented: share of prompts that the model invents.
        ends: tokens that end a message.
    """

    chat: Chat
    words: Words
    invented: float
    ends: frozenset[int]

    @property
    def licences(self) -> Mapping[str, str]:
        """Licences of the templates and of the word lists."""
        nouns = WORDNET_LICENCE if self.words.from_wordnet else "Apache-2.0 (treespec)"
        return {
            "templates": "Apache-2.0 (treespec)",
            f"nouns: {self.words.nouns_from}": nouns,
            "names of modules and functions: Python's standard library": "PSF-2.0",
        }

    def about(self) -> dict[str, Any]:
        """Number of templates, where nouns come from, and a digest of all words."""
        return {
            "prompts": "templates",
            "templates": len(self.words.templates),
            "nouns": self.words.nouns_from,
            "words_sha256": self.words.sha256,
            "invented": self.invented,
        }

    def begin(self, index: int, rng: random.Random) -> Begun:
        """A filled template, or its first words."""
        text = self.words.prompt(rng)
        if rng.random() >= self.invented:
            return Begun(tuple(self.chat.prompt([("user", text)])))
        words = text.splitlines()[0].split(" ")
        count = min(rng.randint(FEWEST_WORDS, MOST_WORDS), max(1, len(words) - 1))
        opening = " ".join(words[:count])
        return Begun(tuple(self.chat.opening(opening)), opening)

    def end(self, begun: Begun, completion: Sequence[int]) -> tuple[int, ...] | None:
        """The message that the model has written, as a prompt; None without an end, or with nothing new."""
        if not completion or completion[-1] not in self.ends or begun.words is None:
            return None
        written = self.chat.tokenizer.decode(completion[:-1], skip_special_tokens=True)
        text = (begun.words + written).strip()
        return tuple(self.chat.prompt([("user", text)])) if written.strip() else None


@dataclass(frozen=True)
class CodePrompts:
    """Beginnings of code of Python's standard library, for a target that writes Python.

    A prompt is the beginning of a file, or begins at one of its classes and functions. Held-out files of
    the embedded pair are no source of prompts.
    """

    tokenizer: Any
    corpus: Corpus = field(default_factory=lambda: read_corpus(standard_library()))
    licences: Mapping[str, str] = field(
        default_factory=lambda: {"prompts: Python's standard library": "PSF-2.0"}
    )

    def about(self) -> dict[str, Any]:
        """A digest of the files."""
        return {"prompts": "standard library", "corpus_sha256": self.corpus.sha256}

    def begin(self, index: int, rng: random.Random) -> Begun:
        """Some tokens from the beginning of a file, or of a class or function in it."""
        text = rng.choice(self.corpus.training).text
        lines = text.splitlines(keepends=True)
        starts = [
            0,
            *(i for i, line in enumerate(lines) if line.startswith(("def ", "class ", "@"))),
        ]
        start = rng.choice(starts) if rng.random() < 0.5 else 0
        tokens = rng.randint(SHORTEST_CODE, LONGEST_CODE)
        excerpt = "".join(lines[start : start + LONGEST_CODE])[: 20 * LONGEST_CODE]
        return Begun(tuple(self.tokenizer.encode(excerpt, verbose=False)[:tokens]))

    def end(self, begun: Begun, completion: Sequence[int]) -> tuple[int, ...] | None:
        """Never needed: the prompts are whole."""
        return None


@dataclass(frozen=True)
class FolderPrompts:
    """Prompts of a folder of texts, in a fixed order, again and again."""

    prompts: Sequence[tuple[int, ...]]
    sha256: str
    licences: Mapping[str, str]

    def about(self) -> dict[str, Any]:
        """Number of prompts, and a digest of the files."""
        return {
            "prompts": "folder",
            "folder_prompts": len(self.prompts),
            "folder_sha256": self.sha256,
        }

    def begin(self, index: int, rng: random.Random) -> Begun:
        """The next prompt."""
        return Begun(self.prompts[index % len(self.prompts)])

    def end(self, begun: Begun, completion: Sequence[int]) -> tuple[int, ...] | None:
        """Never needed: the prompts are whole."""
        return None
