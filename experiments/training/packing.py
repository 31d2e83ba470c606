"""Texts packed into rows of one length, in an order that depends on the seed and the step alone.

Each epoch concatenates the texts in a new random order, cuts the stream into rows and shuffles the rows. A
batch depends only on its step and the seed, so an interrupted training resumes exactly, and a longer one
begins like a shorter one. Tokens of different texts in one row do not see each other: a draft is trained on
the hidden states that a text alone has. A text that is cut goes on in another row from position 0, as if it
began there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.errors import InvalidArgument

__all__ = ["Packed", "PackedTexts", "Texts"]


@dataclass(frozen=True)
class Texts:
    """Token ids of texts, each a prompt and what follows it.

    Args:
        ids: of each text.
        prompts: number of tokens of each text's prompt, which no draft is trained to predict.
    """

    ids: Sequence[np.ndarray]
    prompts: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.prompts):
            raise InvalidArgument(f"{len(self.ids)} texts, but {len(self.prompts)} prompts")

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.ids))

    def head(self, share: float) -> "Texts":
        """The first texts, down to this share of the tokens."""
        wanted, count, total = share * self.tokens, 0, 0
        while count < len(self.ids) and total < wanted:
            total += len(self.ids[count])
            count += 1
        return Texts(self.ids[:count], self.prompts[:count])


@dataclass(frozen=True)
class Packed:
    """Rows of tokens.

    Args:
        ids: the tokens.
        text: the number of each token's text, within its row.
        answer: whether a draft is trained to predict the token.
    """

    ids: Int[Tensor, "B T"]
    text: Int[Tensor, "B T"]
    answer: Bool[Tensor, "B T"]

    def to(self, device: torch.device) -> "Packed":
        """On another device."""
        return Packed(self.ids.to(device), self.text.to(device), self.answer.to(device))

    @property
    def positions(self) -> Int[Tensor, "B T"]:
        """Each token's position in its text, or in the part of it that this row holds."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device).expand_as(self.ids)
        begins = torch.zeros_like(places)
        begins[:, 1:] = (self.text[:, 1:] != self.text[:, :-1]) * places[:, 1:]
        return places - begins.cummax(1).values

    def counted(self, ahead: int) -> Bool[Tensor, "B T"]:
        """Whether the token so many places after each one is of its text and trained to be predicted."""
        counted = torch.zeros_like(self.answer)
        if ahead < counted.shape[1]:
            same = self.text[:, ahead:] == self.text[:, :-ahead]
            counted[:, :-ahead] = self.answer[:, ahead:] & same
        return counted

    def mask(self) -> Float[Tensor, "B 1 T T"]:
        """The additive mask by which each token sees those before it in its text."""
        return additive((self.text[:, :, None] == self.text[:, None]).tril())[:, None]


def additive(seen: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """0 where something is seen, and the least number elsewhere."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill(
        ~seen, torch.finfo(torch.float32).min
    )


class PackedTexts:
    """`packed[step]` is a batch of texts.

    Args:
        texts: the texts.
        rows: B, rows of a batch.
        length: T, tokens of a row.
        seed: of the order.

    Raises:
        InvalidArgument: if all texts together are shorter than a row.
    """

    def __init__(self, texts: Texts, rows: int, length: int, seed: int) -> None:
        self.texts, self.rows, self.length, self.seed = texts, rows, length, seed
        self.blocks = texts.tokens // length
        if not self.blocks:
            raise InvalidArgument(
                f"the texts have {texts.tokens:,} tokens together, but a row of a batch has {length:,}"
            )
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def __getitem__(self, step: int) -> Packed:
        rows = [self._row(step * self.rows + row) for row in range(self.rows)]
        ids, text, answer = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return Packed(ids, text, answer)

    def _row(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        epoch, place = divmod(index, self.blocks)
        ids, text, answer, order = self._epoch(epoch)
        cut = slice(order[place] * self.length, (order[place] + 1) * self.length)
        return ids[cut], text[cut] - text[cut][0], answer[cut]

    def _shuffled(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        random = np.random.default_rng([self.seed, self.length, epoch])
        texts, order = self.texts, random.permutation(len(self.texts.ids))
        lengths = np.array([len(texts.ids[i]) for i in order])
        ids = np.concatenate([texts.ids[i] for i in order]).astype(np.int64)
        places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        answer = places >= np.repeat([texts.prompts[i] for i in order], lengths)
        text = np.repeat(np.arange(len(order)), lengths)
        return ids, text, answer, random.permutation(self.blocks)
