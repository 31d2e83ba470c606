"""The folder that texts are written to: appended batch by batch, and gone on with after a kill."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treespec.experiments.errors import ForeignFolder, RunFolderError, RunNotWritten
from treespec.experiments.records.changes import differences
from treespec.experiments.records.held_folder import HeldFolder, temporaries
from treespec.experiments.training.texts.sieve import Candidate
from treespec.experiments.training.texts.text_index import (
    BATCHES,
    SHARD_BYTES,
    BatchLine,
    dtype_for,
    read_lines_of,
    require_shards,
    shard_path,
)
from treespec.files import append_whole

VERSION = 1

CARD = "DATA_CARD.md"


def dtype_begun_in(path: Path) -> str | None:
    """The dtype of the target that began a folder of texts; None if there is none, or it does not say."""
    try:
        return json.loads((path / "manifest.json").read_text())["recipe"]["dtype"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # what is wrong with a folder is said when it is opened


class TextFolder(HeldFolder):
    """A folder of texts, locked by one process at a time (`with TextFolder(path) as folder:`)."""

    what, manifest_name, marks = "folder of texts", "manifest.json", "recipe"
    version, folders = VERSION, ()
    error, foreign, not_written = RunFolderError, ForeignFolder, RunNotWritten
    elsewhere = "choose another folder"
    goes_on = "Every finished batch is kept: {remedy}, then go on with the same command"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lines: list[BatchLine] = []
        self._dtype = dtype_for(0)

    def own_files(self) -> list[Path]:
        """Index, card and shards."""
        shards = [
            file for file in self.path.glob("ids-*.bin") if re.fullmatch(r"ids-\d+\.bin", file.name)
        ]
        return [self.path / BATCHES, self.path / CARD, *sorted(shards), *temporaries(self.path)]

    def measured(self) -> bool:
        """Whether it holds texts."""
        return (self.path / BATCHES).exists()

    def start(self, recipe: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Begin with a recipe, or go on with the folder's, after what a kill has left is taken away.

        Args:
            recipe: what the texts depend on.
            about: what else the manifest says; kept as it was written first.

        Raises:
            RunFolderError: if the folder was begun with another recipe; names what differs.
        """
        before = self.own_manifest()["recipe"]
        if before is None:
            if self.measured():
                raise RunFolderError(
                    f"{self.path} holds texts, but {self.manifest_name} does not say of which recipe: "
                    "restore it, or choose another folder"
                )
            self.keep_manifest(
                {"schema_version": VERSION, "recipe": dict(recipe), **about, "counts": None}
            )
        elif changed := differences(before, dict(recipe)):
            raise RunFolderError(
                f"{self.path} holds texts of another recipe ({'; '.join(changed)}): choose another folder, "
                "or give the same settings"
            )
        self._dtype = dtype_for(recipe["vocab_size"])
        self.lines, whole = read_lines_of(self.path)
        require_shards(self.path, self.lines)
        self._take_back(whole)

    def _take_back(self, whole: int) -> None:
        """Cut the index to its complete lines, and shards to what these tell of."""
        with self._writing():
            if self.measured():
                os.truncate(self.path / BATCHES, whole)
            last = self.lines[-1].shard if self.lines else -1
            if self.lines:
                os.truncate(shard_path(self.path, last), self.lines[-1].end)
            for file in self.own_files():
                if (found := re.fullmatch(r"ids-(\d+)\.bin", file.name)) and int(found[1]) > last:
                    file.unlink()

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(line.answer_tokens for line in self.lines)

    def append(self, kept: Sequence[Candidate], dropped: Mapping[str, int]) -> BatchLine:
        """Append a batch of texts."""
        shard, end = (self.lines[-1].shard, self.lines[-1].end) if self.lines else (0, 0)
        if end >= SHARD_BYTES:
            shard, end = shard + 1, 0
        ids = np.concatenate(
            [np.zeros(0, self._dtype), *(text.ids.astype(self._dtype) for text in kept)]
        )
        line = BatchLine(
            batch=len(self.lines),
            shard=shard,
            end=end + ids.nbytes,
            lengths=[len(text.ids) for text in kept],
            prompts=[text.prompt for text in kept],
            greedy=[int(text.greedy) for text in kept],
            invented=[int(text.invented) for text in kept],
            dropped=dict(sorted(dropped.items())),
        )
        with self._writing():
            append_whole(shard_path(self.path, shard), ids.tobytes())
            append_whole(self.path / BATCHES, line.written())
        self.lines.append(line)
        return line

    def finish(self, counts: Mapping[str, Any], card: str) -> None:
        """Write the card, and the counts into the manifest."""
        self.keep(self.path / CARD, card)
        data = {key: value for key, value in self.own_manifest().items() if key != "folder_id"}
        self.keep_manifest(data | {"counts": dict(counts)})
