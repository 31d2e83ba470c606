"""A language model given by a table: exact, tiny, and dependent on its whole context.

Its cache works like that of a real model: `run` adds rows and `keep` commits them. So drafters and targets
run the same code over a table as over transformers.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import InvalidArgument
from treespec.features import Features
from treespec.models.waiting import Nodes, run_or_wait
from treespec.step import Scores

Row = Callable[[tuple[int, ...]], Float[Tensor, "V"]]
"""Logits after a context: all committed tokens and the path to a node."""


SOURCE_ENDS = -1
"""Stands between a source and the text in the context of a table."""

LAYERS = 4
"""Number of layers that a table appears to have to drafters that read its hidden states."""


class TabularModel:
    """Logits looked up by the tokens of the context.

    Its hidden states (`lend`) have the width V: the final state is the row of logits itself, and boundary i
    of 0..4 is this row divided by 2 ** (5 - i), exactly. So each depends on the whole context.

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
        self._states: tuple[int | str, ...] = ()

    def fresh(self) -> "TabularModel":
        """The same table with an empty cache."""
        return type(self)(self.row, self.vocab_size, self.max_length)

    def condition(self, source: Int[Tensor, " S"]) -> "TabularModel":
        """The table behind a source: its rows depend on the source and on the whole context.

        The rows are those after the source, `SOURCE_ENDS`, and the context, so that a source is never read
        as the beginning of a text.
        """
        row, before = self.row, (*source.tolist(), SOURCE_ENDS)
        return type(self)(
            lambda context: row((*before, *context)), self.vocab_size, self.max_length
        )

    @property
    def length(self) -> int:
        return len(self._committed)

    def lend(self, reads: Features) -> None:
        """From the next `prefill` on, return these features with every pass; a fresh model lends none.

        Raises:
            InvalidArgument: if the table does not have such a boundary.
        """
        beyond = max(reads.boundaries, default=0)
        if beyond > LAYERS:
            raise InvalidArgument(
                f"the drafter reads boundary {beyond}, but a table has {LAYERS} layers: boundaries are "
                f"0..{LAYERS}"
            )
        self._states = reads.states

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "T F H"] | None:
        self._committed, self._tree, self._parents = tuple(tokens.tolist()), [], ()
        if not self._states:
            return None
        if not self._committed:
            return torch.empty(0, len(self._states), self.vocab_size, dtype=torch.float64)
        ends = range(1, len(self._committed) + 1)
        return self._features(torch.stack([self.row(self._committed[:end]) for end in ends]))

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        return run_or_wait(self, Nodes(tokens, parents, first))

    @property
    def joins(self) -> Hashable:
        """Tables with equal rows share passes in a batch of texts."""
        return self.row, self._states

    def run_together(self, parts: Sequence[tuple["TabularModel", Nodes]]) -> list[Scores]:
        """The rows of several texts; see `treespec.models.waiting.Joinable`."""
        return [table._scores(nodes) for table, nodes in parts]

    def _scores(self, nodes: Nodes) -> Scores:
        self._tree = self._tree[: nodes.first] + nodes.tokens.tolist()
        self._parents = nodes.parents
        ran = range(nodes.first, len(self._tree))
        logits = torch.stack([self.row(self.context(node)) for node in ran])
        return Scores(logits, self._features(logits) if self._states else None)

    def _features(self, rows: Float[Tensor, "T V"]) -> Float[Tensor, "T F V"]:
        halvings = [0 if state == "post" else LAYERS + 1 - int(state) for state in self._states]
        return torch.stack([rows / 2**k for k in halvings], dim=1)

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
