"""One step of speculative decoding over tables, with every coin on every side."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.decoding import require_root
from treespec.errors import TreespecError
from treespec.features import lend, prefill, reads_of
from treespec.models.tabular import TabularModel
from treespec.protocols import Drafter, Growth, Verifier
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.rows import processed_row
from treespec.step import Verdict
from treespec.testing.enumerating_coins import Choice, EnumeratingCoins, Weight, outcomes
from treespec.testing.rounding import Chances, Rounding
from treespec.tree import Law, TokenTree, TreeShape

DraftWith = Callable[[TabularModel, Growth | TreeShape, Law, Sampling], Drafter]
"""Makes the drafter that is enumerated."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """A joint law of tokens, and data on its enumeration.

    Args:
        probs: `[V, ..., V]`, one axis per token.
        runs: number of branches enumerated.
        chance: for the law of a step, the least chance of heads or tails that the rule met; rounding has a
            larger effect if it is small (`treespec.testing.rounding`).
    """

    probs: Float[Tensor, "..."]
    runs: int
    chance: float = 0.0


class _Walk(NamedTuple):
    """One way through a rule, on one of the drafted trees."""

    drafted: Weight
    accepted: Weight
    choices: Sequence[Choice]
    tree: TokenTree
    verdict: Verdict


class SampledTable:
    """The probabilities of a table under a sampling setting, each row computed once.

    `prompt_length`: tokens of the prompt with which contexts begin, for processors.
    """

    def __init__(self, model: TabularModel, sampling: Sampling, prompt_length: int = 1) -> None:
        # Not the model itself: it is a weak key in `_TABLES`.
        self._logits, self._sampling = model.row, sampling
        self._prompt_length = prompt_length
        self.vocab_size = model.vocab_size
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._fresh: dict[tuple[int, ...], int] = {}
        self._laws: dict[tuple[tuple[int, ...], int], Tensor] = {}

    @classmethod
    def of(cls, model: TabularModel, sampling: Sampling, prompt_length: int) -> "SampledTable":
        """The shared object for this table and setting, so that rows are computed once for all trees."""
        tables = _TABLES.setdefault(model, {})
        key = sampling, prompt_length
        if key not in tables:
            tables[key] = cls(model, *key)
        return tables[key]

    def row(self, context: tuple[int, ...]) -> Float[Tensor, "V"]:
        """The law of the next token in the precision of the table, as a rule gets it."""
        if context not in self._rows:
            logits = self._logits(context)
            logits = processed_row(self._sampling, logits, context, self._prompt_length)
            self._rows[context] = row = self._sampling(logits)
            self._fresh[context] = row._version
        return self._rows[context]

    def require_unchanged(self, context: tuple[int, ...]) -> None:
        """Raise `TreespecError` if the row after a context was modified since it was computed."""
        if self._rows[context]._version != self._fresh[context]:
            raise _changed(f"the target's row after {list(context)}")

    def law(self, context: tuple[int, ...], tokens: int) -> Float[Tensor, "..."]:
        """The joint law of the next tokens in float64, `[V] * tokens`; for 0 tokens, the scalar 1."""
        key = context, tokens
        if key not in self._laws:
            row = self.row(context).double()
            row = row / row.sum()  # float32 rows do not sum to 1 exactly; a draw normalises too
            self._laws[key] = (
                torch.ones_like(row[0])
                if tokens == 0
                else torch.stack(
                    [row[t] * self.law((*context, t), tokens - 1) for t in range(self.vocab_size)]
                )
            )
        return self._laws[key]


_TABLES: WeakKeyDictionary[TabularModel, dict[tuple[Sampling, int], SampledTable]] = (
    WeakKeyDictionary()
)


class StepOracle:
    """All trees that a drafter can propose after a prompt, each with its probability.

    The drafter's own code is enumerated once; rules are then enumerated over its trees.

    Args:
        shape: the tree to draft, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: sampling setting of target and draft.
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
        self.table = SampledTable.of(target, sampling, len(prompt))
        reads, model, tokens = reads_of(drafter), target.fresh(), torch.tensor(prompt)
        lend(model, reads)

        def propose(coins: EnumeratingCoins) -> TokenTree:
            prefill(drafter, tokens, model.prefill(tokens[:-1]), reads)
            tree = drafter.propose(coins)
            require_root(tree, prompt[-1])
            return tree

        self.trees = list(outcomes(propose))

    def verdicts(self, verifier: Verifier) -> list[tuple[Weight, TokenTree, Verdict]]:
        """Every tree and verdict with its probability, by enumerating the verifier's own code.

        Raises:
            TreespecError: if the verifier writes to its inputs, or is not a function of its inputs and the
                coins.
        """
        return [
            (walk.drafted * walk.accepted, walk.tree, walk.verdict)
            for walk in self._walks(verifier)
        ]

    def _walks(self, verifier: Verifier) -> Iterator[_Walk]:
        for drafted, tree in self.trees:
            decide = partial(_decide, verifier, tree, _PathRows(self.table, self.prompt, tree))
            for accepted, (verdict, choices) in outcomes(decide):
                yield _Walk(drafted, accepted, choices, tree, verdict)

    def law(self, verifier: Verifier) -> ExactLaw:
        """The law of the step's tokens, completed to depth + 1 tokens by the target's own law.

        Raises:
            TreespecError: if the verifier writes to its inputs, is not a function of its inputs and the
                coins, or returns a bonus that is not a token or a path that does not descend from the root.
        """
        total = self.target_law * 0  # compute the target's law before a rule sees its rows
        emitted: dict[tuple[int, ...], Weight] = defaultdict(int)
        chances, runs = Chances(), 0
        for drafted, accepted, choices, tree, verdict in self._walks(verifier):
            text = (*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus)
            if not 0 <= verdict.bonus < self.table.vocab_size:
                raise TreespecError(
                    f"{verdict}: the bonus is not one of the {self.table.vocab_size} tokens"
                )
            descends = all(tree.shape.parents[b] == a for a, b in pairwise(verdict.path))
            if verdict.path[:1] != (0,) or not descends:
                raise TreespecError(f"{verdict}: the path does not descend from the root")
            weight = drafted * accepted
            emitted[text] += weight
            chances.add(weight, tree.token_ids[1:], choices)
            runs += 1
        for text, weight in emitted.items():
            rest = self.table.law(self.prompt + text, self.tokens - len(text))
            total[text] = total[text] + rest * weight  # pyrefly: ignore[unsupported-operation]
        return ExactLaw(total, runs, chances.least)

    @property
    def target_law(self) -> Float[Tensor, "..."]:
        """The law of depth + 1 tokens when the target decodes plainly."""
        return self.table.law(self.prompt, self.tokens)

    @cached_property
    def rounding(self) -> Rounding:
        """Bounds on the effect of rounding on the law of a step over these trees."""
        shapes = [tree.shape for _, tree in self.trees]
        dtype = self.table.row(self.prompt).dtype
        size = max(shape.size for shape in shapes)
        return Rounding(dtype, size, self.table.vocab_size)


def _decide(
    verifier: Verifier, tree: TokenTree, rows: "_PathRows", coins: EnumeratingCoins
) -> tuple[Verdict, Sequence[Choice]]:
    fresh = _versions(tree)
    verdict = verifier(tree, rows, coins)
    if _versions(tree) != fresh:
        raise _changed("tokens or draft_probs of the tree")
    rows.require_unchanged()
    return verdict, coins.choices


def _versions(tree: TokenTree) -> tuple[int, int]:
    """Versions of a tree's tensors; writing to a tensor increases its version."""
    return tree.tokens._version, 0 if tree.draft_probs is None else tree.draft_probs._version


def _changed(what: str) -> TreespecError:
    return TreespecError(f"it writes to its inputs, {what}: work on a copy")


class _PathRows:
    """The target's rows at the nodes of a tree."""

    def __init__(self, table: SampledTable, prompt: tuple[int, ...], tree: TokenTree) -> None:
        self._table, self._prompt, self._tree = table, prompt, tree
        self._rows: dict[int, Tensor] = {}
        self._contexts: list[tuple[int, ...]] = []

    def __getitem__(self, node: int) -> Float[Tensor, "V"]:
        if node not in self._rows:
            path = self._tree.shape.path(node)[1:]
            context = (*self._prompt, *(self._tree.token_ids[i] for i in path))
            self._rows[node] = self._table.row(context)
            self._contexts.append(context)
        return self._rows[node]

    def require_unchanged(self) -> None:
        """Raise `TreespecError` if a row was modified."""
        for context in self._contexts:
            self._table.require_unchanged(context)
