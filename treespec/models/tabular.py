"""A language model given by a table: exact, tiny, and dependent on its whole context.

Its cache works like that of a real model: `run` adds rows and `keep` commits them. So drafters and targets
run the same code over a table as over transformers.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

Row = Callable[[tuple[int, ...]], Float[Tensor, "V"]]
"""Logits after a context: all committed tokens and the path to a node."""


class TabularModel:
    """Logits looked up by the tokens of the context.

    Args:
        row: returns the logits `[V]` after a context (all committed tokens and the path to a node).
        vocab_size: V.
        max_length: number of positions; large by default, since a table has no limit of its own.
    """

    def __init__(
        self,
        row: Row,
        vocab_size: int,
        max_length: int = 1_000_000,
    ) -> None:
        self.row, self.vocab_size, self.max_length = row, vocab_size, max_length
        self._committed: tuple[int, ...] = ()
        self._tree: list[int] = []
        self._parents: tuple[int, ...] = ()

    def fresh(self) -> "TabularModel":
        """The same table with an empty cache."""
        return type(self)(self.row, self.vocab_size, self.max_length)

    @property
    def length(self) -> int:
        return len(self._committed)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        self._committed, self._tree, self._parents = tuple(tokens.tolist()), [], ()

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        self._tree = self._tree[:first] + tokens.tolist()
        self._parents = parents
        return torch.stack([self.row(self.context(node)) for node in range(first, len(self._tree))])

    def context(self, node: int) -> tuple[int, ...]:
        """The tokens that a node attends to: committed tokens, its ancestors, itself."""
        path = []
        while node >= 0:
            path.append(self._tree[node])
            node = self._parents[node]
        return self._committed + tuple(reversed(path))

    def keep(self, nodes: Sequence[int]) -> None:
        self._committed += tuple(self._tree[node] for node in nodes)
        self._tree, self._parents = [], ()


def random_table(vocab_size: int, seed: int, spread: float = 1.5) -> Row:
    """Independent normal logits for every context, in float64, reproducible by seed.

    Args:
        vocab_size: V.
        seed: determines the table.
        spread: standard deviation of the logits; 0 gives the uniform distribution.
    """

    @cache
    def row(context: tuple[int, ...]) -> Tensor:
        context_hash = seed + 1
        for token in context:
            context_hash = (context_hash * 1_000_003 + token + 1) % (2**61 - 1)
        generator = torch.Generator().manual_seed(context_hash)
        return spread * torch.randn(vocab_size, generator=generator, dtype=torch.float64)

    return row
