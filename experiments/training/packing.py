"""Tokens packed into blocks: files in shuffled order, an end-of-text token between them."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from treespec.experiments.training.corpus import SourceFile


def tokenize(files: Sequence[SourceFile], tokenizer: PreTrainedTokenizerFast) -> list[np.ndarray]:
    """Token ids of each file, opened by the end-of-text token that separates files."""
    encoded = tokenizer.backend_tokenizer.encode_batch([file.text for file in files])
    opening = [tokenizer.eos_token_id]
    return [np.array(opening + encoding.ids, dtype=np.int64) for encoding in encoded]


class Batches:
    """`batches[step]` is a `[rows, length + 1]` tensor: inputs and, shifted by one, their targets.

    An epoch concatenates the files in an order of its own, cuts them into blocks and shuffles the
    blocks. A batch depends on its step and the seed alone, so an interrupted run resumes exactly,
    and a longer run begins like a shorter one.
    """

    def __init__(self, files: Sequence[np.ndarray], rows: int, length: int, seed: int) -> None:
        self.files = files
        self.rows = rows
        self.length = length
        self.seed = seed
        self.blocks = (sum(len(file) for file in files) - 1) // length
        if self.blocks < 1:
            raise ValueError(f"the corpus is shorter than one block of {length} tokens")
        self._epoch = lru_cache(maxsize=2)(self._shuffled_epoch)

    def __getitem__(self, step: int) -> torch.Tensor:
        rows = [self._block(step * self.rows + row) for row in range(self.rows)]
        return torch.from_numpy(np.stack(rows))

    def _block(self, index: int) -> np.ndarray:
        epoch, place = divmod(index, self.blocks)
        stream, order = self._epoch(epoch)
        start = order[place] * self.length
        return stream[start : start + self.length + 1]

    def _shuffled_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng([self.seed, self.length, epoch])
        stream = np.concatenate([self.files[i] for i in random.permutation(len(self.files))])
        return stream, random.permutation(self.blocks)
