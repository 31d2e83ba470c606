"""Files that hold the embedded prompts again: what drafts from texts must not read them."""

import sysconfig
from collections import Counter
from pathlib import Path

from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.prompts import read_prompts

__all__ = ["HeldOut", "installed_code"]

LARGEST_SHARED_LINES = 0.2
"""Of the lines of one file that stand in the other: with more of them they are copies."""


class HeldOut:
    """The texts of the embedded prompts, line by line, and which files copy them.

    Packages ship modules of the standard library (`multiprocess`, `setuptools._distutils`), under their
    names or others. A file is a copy if it has more than a fifth of a prompt's lines, or bears the name of
    the prompt's file and has more than a fifth of its own lines from it. Equal lines count once, and blanks
    around them and empty lines do not count.
    """

    def __init__(self) -> None:
        prompts = read_prompts(EmbeddedPrompts(kind="embedded"))
        texts = {prompt.id: _lines(prompt.text) for prompt in prompts}
        self._sizes = {name: len(lines) for name, lines in texts.items()}
        self._where: dict[str, list[str]] = {}
        for name, lines in texts.items():
            for line in lines:
                self._where.setdefault(line, []).append(name)

    def has_copy(self, name: str, text: str) -> bool:
        """Whether a file is a copy.

        Args:
            name: of the file, without its folder.
            text: that it holds.
        """
        lines = _lines(text)
        shared = Counter(of for line in lines for of in self._where.get(line, ()))
        return any(
            count > LARGEST_SHARED_LINES * self._sizes[of]
            or (name == Path(of).name and count > LARGEST_SHARED_LINES * len(lines))
            for of, count in shared.items()
        )


def installed_code() -> list[Path]:
    """The .py files of the packages installed beside treespec, without the standard library, in order."""
    packages = Path(sysconfig.get_paths()["purelib"])
    return sorted(path for path in packages.rglob("*.py") if path.is_file())


def _lines(text: str) -> set[str]:
    return {line for line in map(str.strip, text.splitlines()) if line}
