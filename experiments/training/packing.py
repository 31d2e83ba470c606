"""Texts packed into rows of one length, in an order that depends on the seed and the step alone.

Each epoch puts the texts, in a new random order, whole into rows, each into the open row that it fills
best; only what is longer than a row is cut, and its parts are texts of their own. What stays free in a row
is padding, which nothing sees and nothing learns. A batch depends only on its step and the seed, so an
interrupted training resumes exactly, and a longer one begins like a shorter one. Texts of one row do not
see each other: a draft is trained on the hidden states that a text alone has.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.errors import InvalidArgument


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

    def without(self, left_out: Collection[int]) -> "Texts":
        """The texts but those at these indices."""
        kept = [i for i in range(len(self.ids)) if i not in left_out]
        return Texts([self.ids[i] for i in kept], [self.prompts[i] for i in kept])


@dataclass(frozen=True)
class Packed:
    """Rows of tokens.

    Args:
        ids: the tokens.
        text: the number of each token's text, within its row; -1 for padding.
        answer: whether a draft is trained to predict the token.
        place: the number of each token among those of all texts, -1 for padding; None if the tokens are not
            those of texts.
    """

    ids: Int[Tensor, "B T"]
    text: Int[Tensor, "B T"]
    answer: Bool[Tensor, "B T"]
    place: Int[Tensor, "B T"] | None = None

    def to(self, device: torch.device) -> "Packed":
        """On another device."""
        return self._each(lambda part: part.to(device))

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int((self.text >= 0).sum())

    def part(self, rank: int, count: int) -> "Packed":
        """The rows of one of several processes."""
        return self._each(lambda part: part[rank::count])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Packed":
        place = None if self.place is None else change(self.place)
        return Packed(change(self.ids), change(self.text), change(self.answer), place)

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
        seen = (self.text[:, :, None] == self.text[:, None]).tril()[:, None]
        zeros = torch.zeros(seen.shape, device=seen.device)
        return zeros.masked_fill(~seen, torch.finfo(torch.float32).min)


OPEN_ROWS = 64
"""Rows that are filled at the same time."""


class PackedTexts:
    """`packed[step]` is a batch of texts.

    Args:
        texts: the texts.
        rows: B, rows of a batch.
        length: T, tokens of a row.
        seed: of the order.

    Raises:
        InvalidArgument: if there are no texts.
    """

    def __init__(self, texts: Texts, rows: int, length: int, seed: int) -> None:
        self.texts, self.rows, self.length, self.seed = texts, rows, length, seed
        if not texts.tokens:
            raise InvalidArgument("there are no texts to train on")
        self._epoch = lru_cache(maxsize=2)(self._packed)
        self._begins = np.cumsum([0, *map(len, texts.ids)])
        self._sizes: list[int] = []
        """Rows of each epoch so far."""

    def __getitem__(self, step: int) -> Packed:
        rows = [self._row(step * self.rows + row) for row in range(self.rows)]
        parts = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return Packed(*parts)

    def _row(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        epoch = 0
        while index >= self.rows_of_epoch(epoch):
            index -= self.rows_of_epoch(epoch)
            epoch += 1
        parts = self._epoch(epoch)[index]
        ids, text = np.zeros(self.length, np.int64), np.full(self.length, -1)
        answer, place, end = np.zeros(self.length, bool), np.full(self.length, -1), 0
        for number, (i, begin, size) in enumerate(parts):
            here, tokens = slice(end, end + size), np.arange(begin, begin + size)
            ids[here] = self.texts.ids[i][begin : begin + size]
            text[here], place[here] = number, self._begins[i] + tokens
            answer[here] = tokens >= self.texts.prompts[i]
            end += size
        return ids, text, answer, place

    def rows_of_epoch(self, epoch: int) -> int:
        """Number of rows of an epoch."""
        while len(self._sizes) <= epoch:
            self._sizes.append(len(self._epoch(len(self._sizes))))
        return self._sizes[epoch]

    def _packed(self, epoch: int) -> list[list[tuple[int, int, int]]]:
        """The rows of an epoch: parts of texts, each its index, first token and number of tokens."""
        random = np.random.default_rng([self.seed, self.length, epoch])
        order: list[int] = random.permutation(len(self.texts.ids)).tolist()
        closed: list[list[tuple[int, int, int]]] = []
        opened: list[tuple[int, list[tuple[int, int, int]]]] = []  # by free room
        for i in order:
            whole = len(self.texts.ids[i])
            for begin in range(0, whole, self.length):
                size = min(self.length, whole - begin)
                place = bisect_left(opened, size, key=lambda row: row[0])
                room, parts = opened.pop(place) if place < len(opened) else (self.length, [])
                parts.append((i, begin, size))
                if room > size:
                    insort(opened, (room - size, parts), key=lambda row: row[0])
                else:
                    closed.append(parts)
                if len(opened) > OPEN_ROWS:
                    closed.append(opened.pop(0)[1])
        rows = closed + [parts for _, parts in opened]
        return [rows[i] for i in random.permutation(len(rows))]
