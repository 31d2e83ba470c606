"""Read a folder of texts, to train on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Int64

from treespec.draft.state import tokenizer_digest
from treespec.errors import Unreadable
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.experiments.training.texts.text_index import (
    dtype_for,
    read_lines_of,
    require_shards,
    shard_path,
)
from treespec.files import DATA_BYTES, parse_json, read_bytes


@dataclass(frozen=True, eq=False)
class TextData(Sequence[Int64[np.ndarray, "_"]]):
    """Texts in the order in which they were written; `data[i]` is a text's token ids, prompt and answer.

    Args:
        folder: where they are.
        manifest: recipe, versions, licences, and counts once all texts are written.
        lengths: tokens of each text.
        prompt_lengths: tokens of each text's prompt; 0 for a text that was given and has none.
        greedy: whether each answer was written greedily.
        invented: whether each prompt was invented by the target.
    """

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    lengths: Int64[np.ndarray, "N"] = field(repr=False)
    prompt_lengths: Int64[np.ndarray, "N"] = field(repr=False)
    greedy: Bool[np.ndarray, "N"] = field(repr=False)
    invented: Bool[np.ndarray, "N"] = field(repr=False)
    _shards: tuple[np.ndarray, ...] = field(repr=False)
    _places: Int64[np.ndarray, "N 2"] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> "TextData":
        """Read a folder that `treespec train data` has written; also one that is not finished.

        Raises:
            RunFolderError: if it is no such folder, holds no text, or is damaged; names the file.
        """
        folder = Path(folder)
        try:
            manifest = parse_json(read_bytes(folder / "manifest.json", DATA_BYTES))
        except Unreadable as error:
            raise RunFolderError(f"{error}; `treespec train data {folder}` writes texts") from None
        recipe = manifest.get("recipe") if isinstance(manifest, dict) else None
        lines, _ = read_lines_of(folder)
        if (
            not isinstance(recipe, dict)
            or "vocab_size" not in recipe
            or not any(x.lengths for x in lines)
        ):
            raise RunFolderError(
                f"{folder} holds no texts; `treespec train data {folder}` writes some"
            )
        require_shards(folder, lines)
        dtype = dtype_for(recipe["vocab_size"])
        shards = [np.fromfile(shard_path(folder, n), dtype) for n in range(lines[-1].shard + 1)]
        places = []
        for line in lines:
            end = line.end // dtype.itemsize
            starts = end - np.cumsum(line.lengths[::-1], dtype=np.int64)[::-1]
            places += [(line.shard, int(start)) for start in starts]
        return cls(
            folder,
            manifest,
            np.array([n for line in lines for n in line.lengths], np.int64),
            np.array([n for line in lines for n in line.prompts], np.int64),
            np.array([n for line in lines for n in line.greedy], bool),
            np.array([n for line in lines for n in line.invented], bool),
            tuple(shards),
            np.array(places, np.int64).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Int64[np.ndarray, "_"]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Int64[np.ndarray, "_"]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """The token ids of a text, or of several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        shard, start = self._places[index]
        return self._shards[shard][start : start + self.lengths[index]].astype(np.int64)

    def __iter__(self) -> Iterator[Int64[np.ndarray, "_"]]:
        return (self[i] for i in range(len(self)))

    @property
    def tokens(self) -> int:
        """Tokens of all answers: what there is to learn from."""
        return int((self.lengths - self.prompt_lengths).sum())

    @property
    def vocab_size(self) -> int:
        """Size of the target's vocabulary."""
        return int(self.manifest["recipe"]["vocab_size"])

    def head(self, share: float) -> "TextData":
        """The first texts, up to and with the one that reaches this share of all answers' tokens.

        Args:
            share: in (0, 1].
        """
        if not 0 < share <= 1:
            raise ConfigError(f"a share of {share} of the texts: must be above 0 and at most 1")
        answers = np.cumsum(self.lengths - self.prompt_lengths)
        count = int(np.searchsorted(answers, share * answers[-1] * (1 - 1e-12))) + 1
        return self._of(slice(0, count))

    def _of(self, part: slice) -> "TextData":
        return replace(
            self,
            lengths=self.lengths[part],
            prompt_lengths=self.prompt_lengths[part],
            greedy=self.greedy[part],
            invented=self.invented[part],
            _places=self._places[part],
        )

    def require_for(self, tokenizer: Any, vocab_size: int) -> None:
        """Refuse texts whose ids mean other tokens to a target.

        Raises:
            ConfigError: if tokenizer or vocabulary differ.
        """
        recipe = self.manifest["recipe"]
        way_out = (
            f"write texts for this target (`treespec train data`), or train on {recipe['target']}"
        )
        if recipe["vocab_size"] != vocab_size:
            raise ConfigError(
                f"{self.folder} holds ids of a vocabulary of {recipe['vocab_size']:,}, but the target's "
                f"has {vocab_size:,}: {way_out}"
            )
        if recipe["tokenizer"] != tokenizer_digest(tokenizer):
            raise ConfigError(
                f"{self.folder} holds ids of the tokenizer of {recipe['target']}, but the target's "
                f"differs: {way_out}"
            )
