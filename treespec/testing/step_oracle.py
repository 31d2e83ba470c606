"""One step of speculative decoding over tables, with every coin on every side."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.distributions import Sampling
from treespec.errors import TreespecError
from treespec.models.tabular import TabularModel
from treespec.protocols import Drafter, Growth, Verifier
from treespec.step import Verdict
from treespec.testing.coins import EnumeratingCoins, Weight, outcomes
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["DraftWith", "ExactLaw", "SampledTable", "StepOracle"]

DraftWith = Callable[[TabularModel, Growth | TreeShape, Law, Sampling], Drafter]
"""Makes the drafter that is enumerated."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """A joint law of tokens and how it was found.

    Args:
        probs: `[V, ..., V]`, one axis for each token.
        runs: branches enumerated.
    """

    probs: Float[Tensor, "..."]
    runs: int


class SampledTable:
    """The probabilities of a table under a sampling setting, each row computed once.

    Args:
        model: the table.
        sampling: the setting.
    """

    def __init__(self, model: TabularModel, sampling: Sampling) -> None:
        self._model, self._sampling = model, sampling
        self.vocab_size = model.vocab_size
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._laws: dict[tuple[tuple[int, ...], int], Tensor] = {}

    def row(self, context: tuple[int, ...]) -> Float[Tensor, "V"]:
        """The law of the next token."""
        if context not in self._rows:
            self._rows[context] = self._sampling(self._model.row(context)).double()
        return self._rows[context]

    def law(self, context: tuple[int, ...], tokens: int) -> Float[Tensor, "..."]:
        """The joint law of the next tokens, `[V] * tokens`; of none, the scalar 1."""
        key = context, tokens
        if key not in self._laws:
            row = self.row(context)
            self._laws[key] = (
                torch.ones_like(row[0])
                if tokens == 0
                else torch.stack(
                    [
                        row[t] * self.law((*context, t), tokens - 1)
                        for t in range(self._model.vocab_size)
                    ]
                )
            )
        return self._laws[key]


class StepOracle:
    """All trees that a drafter can propose after a prompt, each with its probability.

    The drafter's own code is enumerated, once; rules are then enumerated over its trees.

    Args:
        shape: the tree to draft, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: of target and draft.
        draft_with: makes the drafter.
    """

    def __init__(
        self,
        shape: TreeShape | Growth,
        law: Law,
        target: TabularModel,
        draft: TabularModel,
        prompt: tuple[int, ...],
        sampling: Sampling,
        draft_with: DraftWith,
    ) -> None:
        drafter = draft_with(draft, shape, law, sampling)
        self.prompt, self.tokens = prompt, drafter.max_depth + 1
        self.table = SampledTable(target, sampling)

        def propose(coins: EnumeratingCoins) -> TokenTree:
            drafter.prefill(torch.tensor(prompt))
            return drafter.propose(coins)

        self.trees = list(outcomes(propose))

    def verdicts(self, verifier: Verifier) -> list[tuple[Weight, TokenTree, Verdict]]:
        """Every tree and verdict with its probability; the verifier's own code decides."""
        found = []
        for drafted, tree in self.trees:
            rows = _PathRows(self.table, self.prompt, tree)
            for accepted, verdict in outcomes(lambda c, t=tree, r=rows: verifier(t, r, c)):
                found.append((drafted * accepted, tree, verdict))
        return found

    def law(self, verifier: Verifier) -> ExactLaw:
        """The law of the step's tokens, completed by the target's own to depth + 1 tokens."""
        verdicts = self.verdicts(verifier)
        emitted: dict[tuple[int, ...], Weight] = defaultdict(int)
        for weight, tree, verdict in verdicts:
            text = (*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus)
            if not 0 <= verdict.bonus < self.table.vocab_size:
                raise TreespecError(
                    f"{verdict}: the bonus is none of the {self.table.vocab_size} tokens"
                )
            emitted[text] += weight
        total = self.target_law * 0
        for text, weight in emitted.items():
            rest = self.table.law(self.prompt + text, self.tokens - len(text))
            total[text] = total[text] + rest * weight  # pyrefly: ignore[unsupported-operation]
        return ExactLaw(total, len(verdicts))

    @property
    def target_law(self) -> Float[Tensor, "..."]:
        """The law of depth + 1 tokens when the target decodes plainly."""
        return self.table.law(self.prompt, self.tokens)


class _PathRows:
    """The target's rows at the nodes of a tree."""

    def __init__(self, table: SampledTable, prompt: tuple[int, ...], tree: TokenTree) -> None:
        self._table, self._prompt, self._tree = table, prompt, tree

    def __getitem__(self, node: int) -> Float[Tensor, "V"]:
        path = self._tree.shape.path(node)[1:]
        return self._table.row((*self._prompt, *(self._tree.token_ids[i] for i in path)))
