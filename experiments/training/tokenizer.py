"""The tokenizer of the pair, and the batches of tokens that training uses.

Byte-level BPE, so that every text round-trips exactly. Files are packed in shuffled order, separated by an
end-of-text token.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from treespec.experiments.training.corpus import SourceFile

END_OF_TEXT = "<|endoftext|>"

# Words with one leading character, single digits, punctuation with the line ends after it, line ends, and
# runs of spaces: an indentation is one piece, and a line end is never part of a word.
PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with `vocab_size` entries; `context` is the longest input of the models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def tokenize(files: Sequence[SourceFile], tokenizer: PreTrainedTokenizerFast) -> list[np.ndarray]:
    encoded = tokenizer.backend_tokenizer.encode_batch([file.text for file in files])
    return [
        np.array([tokenizer.eos_token_id, *encoding.ids], dtype=np.int64) for encoding in encoded
    ]


class Batches:
    """`batches[step]` is a `[rows, length + 1]` tensor of inputs and, shifted by one, their targets.

    Each epoch concatenates the files in a new random order, cuts them into blocks and shuffles the
    blocks. A batch depends only on its step and the seed, so an interrupted run resumes exactly, and a
    longer run begins like a shorter one.
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
        epoch, position = divmod(index, self.blocks)
        stream, order = self._epoch(epoch)
        start = order[position] * self.length
        return stream[start : start + self.length + 1]

    def _shuffled_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng([self.seed, self.length, epoch])
        stream = np.concatenate([self.files[i] for i in random.permutation(len(self.files))])
        return stream, random.permutation(self.blocks)
