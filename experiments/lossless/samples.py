"""Save the texts of an unfinished `treespec check-lossless`, so that a stopped check can resume.

The file has one line per prompt, method and setting, written when all its texts are drawn. The first line
records what the texts are samples of: config, sizes, passes, versions, and the code itself, because texts
of other code prove nothing about this code. A line that a kill cut short is ignored.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attention_masks
import treespec
from treespec.experiments.errors import ConfigError
from treespec.files import append_whole, write_whole

NAME = "samples.jsonl"

FIELDS = {"sampling", "method", "prompt", "rows", "seconds"}


class Texts(NamedTuple):
    """Sampled texts.

    Rows hold the prompt's number and the token ids of a text.
    """

    rows: list[list[int]]
    seconds: float


class KeptSamples:
    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        self._texts: dict[tuple[str, str, int], Texts] = {}
        head = json.loads(json.dumps(about))
        lines = self.path.read_bytes().split(b"\n") if os.path.lexists(self.path) else []
        complete = lines[:-1]
        if lines and (not complete or _data(complete[0]) != head):
            raise ConfigError(
                f"{self.path} holds texts of another check, or of other code: remove it, or give another "
                "folder with --out"
            )
        for line in complete[1:]:
            row = _data(line)
            if isinstance(row, dict) and set(row) == FIELDS:
                key = row["sampling"], row["method"], row["prompt"]
                self._texts[key] = Texts(row["rows"], row["seconds"])
        if lines[-1:] != [b""]:  # a new file, or a last line that was cut short
            kept_lines = complete or [json.dumps(head).encode()]
            write_whole(self.path, b"".join(line + b"\n" for line in kept_lines))

    def __len__(self) -> int:
        return len(self._texts)

    def of(self, sampling: str, method: str, prompt: int) -> Texts | None:
        return self._texts.get((sampling, method, prompt))

    def add(self, sampling: str, method: str, prompt: int, texts: Texts) -> None:
        row = {"sampling": sampling, "method": method, "prompt": prompt, **texts._asdict()}
        append_whole(self.path, json.dumps(row).encode() + b"\n")
        self._texts[sampling, method, prompt] = texts


def code_hash() -> str:
    digest = hashlib.sha256()
    for package in (attention_masks, treespec):
        assert package.__file__ is not None
        for folder, folders, files in os.walk(Path(package.__file__).parent, followlinks=True):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    digest.update(name.encode() + b"\0" + Path(folder, name).read_bytes())
    return digest.hexdigest()


def _data(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
