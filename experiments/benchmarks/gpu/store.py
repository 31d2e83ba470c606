"""A file of measured cells that is whole at every moment, and that a later run goes on with.

A cell is kept if it was measured by the same code, versions and device. The code is known by a hash of the
sources that the part rests on: results that are written into the repository change what git says of it, and
a copy without `.git` says nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treespec.experiments.benchmarks.results_file import described, path_of
from treespec.search.whole_file import write_whole

__all__ = ["Store", "source_hash"]

ROOT = Path(__file__).resolve().parents[3]

KEPT_IF_EQUAL = ("source_hash", "versions", "hardware", "dry")


class Store:
    """The cells of one part, by key; each `add` replaces the file atomically.

    Args:
        benchmark: name of the part.
        folder: of the file.
        sources: files and folders, from the repository's root, that decide what the figures mean.
        head: what is written beside the cells, such as `dry` and the device's peaks.
        fresh: forget what an earlier run measured.
    """

    def __init__(
        self,
        benchmark: str,
        folder: Path,
        sources: Sequence[str],
        head: Mapping[str, Any],
        *,
        fresh: bool = False,
    ) -> None:
        self.path = path_of(benchmark, folder)
        self._head = described(benchmark) | {"source_hash": source_hash(sources), **head}
        self.cells: dict[str, Any] = {} if fresh else self._kept()
        self.kept = len(self.cells)
        """Cells of an earlier run."""

    def __contains__(self, key: str) -> bool:
        return key in self.cells

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a cell down.

        Args:
            key: says what was measured, for a person too.
            cell: plain data.
        """
        self.cells[key] = dict(cell)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self._head | {"cells": self.cells}, indent=1) + "\n")

    def _kept(self) -> dict[str, Any]:
        try:
            before = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        same = all(before.get(name) == self._head[name] for name in KEPT_IF_EQUAL)
        return before.get("cells", {}) if same else {}


def source_hash(sources: Sequence[str], root: Path = ROOT) -> str:
    """A hash of Python files, by their paths and what is in them.

    Args:
        sources: files, and folders that stand for all Python files in them.
        root: what the paths start from.
    """
    files = set[Path]()
    for source in sources:
        path = root / source
        files |= set(path.rglob("*.py")) if path.is_dir() else {path}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
