"""Find copies of the embedded prompts among files: draft sources must not be built from them."""

import sysconfig
from collections import Counter
from pathlib import Path

from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.run.prompts import read_prompts

LARGEST_SHARED_LINES = 0.2
"""Largest share of one file's lines that another file may hold without being a copy of it."""


class HeldOut:
    """Recognises copies of the embedded prompts' files by their lines.

    Some packages ship modules of the standard library (`multiprocess`, `setuptools._distutils`), under the
    same or other names. A file is a copy if it holds more than a fifth of the lines of a prompt's file, or
    if it has the same name and more than a fifth of its own lines are from that file. Lines are compared
    without surrounding blanks; empty lines are ignored, and repeated lines count once.
    """

    def __init__(self) -> None:
        self._line_counts: dict[str, int] = {}
        self._files_with: dict[str, list[str]] = {}
        for prompt in read_prompts(EmbeddedPrompts(kind="embedded")):
            lines = _lines(prompt.text)
            self._line_counts[prompt.id] = len(lines)
            for line in lines:
                self._files_with.setdefault(line, []).append(prompt.id)

    def has_copy(self, name: str, text: str) -> bool:
        lines = _lines(text)
        shared = Counter(prompt for line in lines for prompt in self._files_with.get(line, ()))
        return any(
            count > LARGEST_SHARED_LINES * self._line_counts[prompt]
            or (name == Path(prompt).name and count > LARGEST_SHARED_LINES * len(lines))
            for prompt, count in shared.items()
        )


def installed_code() -> list[Path]:
    """The .py files of all installed packages, sorted, without the standard library."""
    modules = Path(sysconfig.get_paths()["purelib"]).rglob("*.py")
    return sorted(filter(Path.is_file, modules))


def _lines(text: str) -> set[str]:
    return {line for line in map(str.strip, text.splitlines()) if line}
