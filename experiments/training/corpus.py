"""The corpus: Python source files of a folder, split by file into training and held-out text.

The default folder is the standard library of the running interpreter: every machine that can run the recipe
has it, its licence allows redistribution, and code is easy to draft.
"""

import hashlib
import json
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from treespec.files import write_whole

EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__"}
)
HELD_OUT_PER_MILLE = 60


@dataclass(frozen=True)
class SourceFile:
    """One file of the corpus: its path relative to the corpus folder, and its text."""

    path: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus folder, split deterministically by a hash of their path."""

    training: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]

    @property
    def sha256(self) -> str:
        """Digest of all paths and texts, sorted by path; identifies the data exactly."""
        digest = hashlib.sha256()
        for file in sorted(self.training + self.held_out, key=lambda file: file.path):
            digest.update(f"{file.path}\0{len(file.text.encode())}\0{file.text}".encode())
        return digest.hexdigest()


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(folder: Path) -> Corpus:
    files = []
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        if EXCLUDED_FOLDERS.isdisjoint(relative.parts[:-1]):
            try:
                text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            if text:
                files.append(SourceFile(relative.as_posix(), text))
    return Corpus(
        training=tuple(file for file in files if not is_held_out(file.path)),
        held_out=tuple(file for file in files if is_held_out(file.path)),
    )


def is_held_out(path: str) -> bool:
    """Whether a file is held out; depends on its path only, so it can be checked anywhere."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4]) % 1000 < HELD_OUT_PER_MILLE


def size_of(files: Iterable[SourceFile]) -> int:
    return sum(len(file.text.encode()) for file in files)


PROMPT_BYTES = 16 * 1024
SHORTEST_PROMPT_BYTES = 3000
MOST_PROMPTS = 24


def choose_prompts(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Choose at most `MOST_PROMPTS` of these files as prompts, in order of a hash of their path.

    Short files, character tables and files that begin with a licence make poor prompts and are left out.
    """
    chosen = [
        SourceFile(file.path, shorten(file.text, PROMPT_BYTES))
        for file in sorted(files, key=lambda file: hashlib.sha256(file.path.encode()).digest())
        if len(file.text.encode()) >= SHORTEST_PROMPT_BYTES
        and not file.path.startswith("encodings/")
        and "copyright" not in file.text[:1000].lower()
    ]
    return chosen[:MOST_PROMPTS]


def shorten(text: str, most_bytes: int) -> str:
    """The text if it fits in `most_bytes`, else as many of its first lines as fit."""
    if len(text.encode()) <= most_bytes:
        return text
    head = text.encode()[:most_bytes]
    return head[: head.rfind(b"\n") + 1].decode()


def write_held_out(files: Iterable[SourceFile], path: Path) -> None:
    """Write one JSON object per line with the relative path and the text of a file."""
    lines = (json.dumps({"file": file.path, "text": file.text}) + "\n" for file in files)
    write_whole(path, "".join(lines))
