"""Exact output laws, by enumeration of the drafter's and the rule's own code over tables."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.decode import decode
from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.models.tabular import TabularModel
from treespec.protocols import Drafter, Growth, Verifier
from treespec.step import Verdict
from treespec.target.model import ModelTarget
from treespec.testing.coins import outcomes
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["DraftWith", "ExactLaw", "output_law", "step_law", "target_law"]

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


def target_law(
    target: TabularModel, context: tuple[int, ...], tokens: int, sampling: Sampling
) -> Float[Tensor, "..."]:
    """The joint law of the next tokens when the target decodes plainly.

    Args:
        target: the table.
        context: committed tokens.
        tokens: how many; 0 gives the scalar 1.
        sampling: applied to every row.

    Returns:
        `[V] * tokens`, in float64.
    """
    if tokens == 0:
        return torch.ones((), dtype=torch.float64)
    row = sampling(target.row(context)).double()
    rest = [
        target_law(target, (*context, token), tokens - 1, sampling) if row[token] > 0 else None
        for token in range(target.vocab_size)
    ]
    shape = (target.vocab_size,) * (tokens - 1)
    zero = torch.zeros(shape, dtype=torch.float64)
    return torch.stack([zero if r is None else p * r for p, r in zip(row, rest, strict=True)])


def step_law(
    verifier: Verifier,
    shape: TreeShape,
    law: Law,
    *,
    target: TabularModel,
    draft: TabularModel,
    prompt: tuple[int, ...] = (0,),
    sampling: Sampling | None = None,
    draft_with: DraftWith = ModelDrafter,
) -> ExactLaw:
    """The law of one step's emitted tokens, completed by the target's own law to depth + 1 tokens.

    A rule is lossless for this tree if and only if this is `target_law` of depth + 1 tokens.

    Args:
        verifier: the rule.
        shape: the tree to draft.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: of target and draft.
        draft_with: makes the drafter.
    """
    sampling = sampling or Sampling()
    tokens = shape.depth + 1
    total = torch.zeros((target.vocab_size,) * tokens, dtype=torch.float64)
    scorer, drafter = ModelTarget(target), draft_with(draft, shape, law, sampling)
    runs = 0

    def draft_tree(coins) -> TokenTree:
        drafter.prefill(torch.tensor(prompt))
        return drafter.propose(coins)

    for drafted, tree in outcomes(draft_tree):
        scorer.prefill(torch.tensor(prompt))
        rows = sampling.rows(scorer.score(tree).logits)

        def decide(coins, tree=tree, rows=rows) -> Verdict:
            return verifier(tree, rows, coins)

        for accepted, verdict in outcomes(decide):
            emitted = (*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus)
            rest = target_law(target, prompt + emitted, tokens - len(emitted), sampling)
            total[emitted] += drafted * accepted * rest
            runs += 1
    return ExactLaw(total, runs)


def output_law(
    verifier: Verifier,
    shape: TreeShape | Growth,
    law: Law,
    *,
    target: TabularModel,
    draft: TabularModel,
    tokens: int = 3,
    prompt: tuple[int, ...] = (0,),
    sampling: Sampling | None = None,
    draft_with: DraftWith = ModelDrafter,
    target_with: Callable[[TabularModel], ModelTarget] = ModelTarget,
) -> ExactLaw:
    """The joint law of the next tokens through the real `decode`, every coin on every side.

    Unlike `step_law` this runs several steps, so it also sees what is handed from step to step: pending
    tokens, committed rows, caches that were not cut. Its cost grows with the number of branches to the
    power of the number of steps: keep trees small.

    Args:
        verifier: the rule.
        shape: the tree, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        tokens: how many tokens.
        prompt: committed tokens.
        sampling: of target and draft.
        draft_with: makes the drafter.
        target_with: makes the target.
    """
    sampling = sampling or Sampling()
    total = torch.zeros((target.vocab_size,) * tokens, dtype=torch.float64)
    runs = 0

    def play(coins) -> tuple[int, ...]:
        steps = decode(
            target_with(target),
            draft_with(draft, shape, law, sampling),
            verifier,
            torch.tensor(prompt),
            sampling=sampling,
            coins=coins,
            max_new_tokens=tokens,
        )
        return tuple(token for step in steps for token in step.tokens)

    for weight, text in outcomes(play):
        total[text] += weight
        runs += 1
    return ExactLaw(total, runs)
