"""Exact output laws over tables, by enumerating the drafter's and the rule's own code."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.decoding import decode
from treespec.draft.model import ModelDrafter
from treespec.models.tabular import TabularModel
from treespec.protocols import Growth, Verifier
from treespec.sampling.distributions import Sampling
from treespec.target.model_target import ModelTarget
from treespec.testing.enumerating_coins import EnumeratingCoins, Weight, outcomes
from treespec.testing.exact import AsGiven, exactly
from treespec.testing.states import state_of
from treespec.testing.step_oracle import DraftWith, ExactLaw, SampledTable, StepOracle
from treespec.tree import Law, TreeShape


def target_law(
    target: TabularModel, context: tuple[int, ...], tokens: int, sampling: Sampling
) -> Float[Tensor, "..."]:
    """The joint law of the next tokens when the target decodes plainly.

    Args:
        target: the table.
        context: committed tokens.
        tokens: number of tokens; 0 gives the scalar 1.
        sampling: sampling setting, applied to every row.

    Returns:
        `[V] * tokens`, in float64.
    """
    return SampledTable(target, sampling, len(context)).law(context, tokens)


def step_law(
    verifier: Verifier,
    shape: TreeShape | Growth,
    law: Law,
    *,
    target: TabularModel,
    draft: TabularModel,
    prompt: tuple[int, ...] = (0,),
    sampling: Sampling | None = None,
    draft_with: DraftWith = ModelDrafter,
    exact: bool = False,
) -> ExactLaw:
    """The law of one step's emitted tokens, completed to depth + 1 tokens by the target's own law.

    A rule is lossless for this tree if and only if this equals the `target_law` of depth + 1 tokens.

    Args:
        verifier: the rule.
        shape: the tree to draft, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: sampling setting of target and draft.
        draft_with: makes the drafter.
        exact: compute in fractions, taking the tables' float probabilities as exact.
    """
    target, draft, sampling = settled(target, draft, sampling, exact)
    return StepOracle(shape, law, target, draft, prompt, sampling, draft_with).law(verifier)


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
    exact: bool = False,
) -> ExactLaw:
    """The joint law of the next tokens through the real `decode`, with every coin on every side.

    Unlike `step_law` this runs several steps, so it also covers what is passed from step to step: pending
    tokens, committed rows, caches that were not truncated. Every branch decodes from the prompt, with a
    target and a drafter of its own. Branches that have the same text after a step, and whose target and
    drafter have the same state (`treespec.testing.states`), have the same future, which is walked once. So
    the cost grows with the number of steps times the number of reachable states. If a drafter has state
    that cannot be compared, the cost is the number of branches of a step to the power of the number of
    steps.

    Args:
        verifier: the rule.
        shape: the tree, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        tokens: number of tokens.
        prompt: committed tokens.
        sampling: sampling setting of target and draft.
        draft_with: makes the drafter.
        target_with: makes the target.
        exact: compute in fractions, taking the tables' float probabilities as exact.
    """
    target, draft, sampling = settled(target, draft, sampling, exact)
    total = SampledTable(target, sampling, len(prompt)).law(prompt, tokens) * 0

    def play(steps: int, coins: EnumeratingCoins) -> _Branch:
        branch_target, drafter = target_with(target), draft_with(draft, shape, law, sampling)
        decoding = decode(
            branch_target,
            drafter,
            verifier,
            torch.tensor(prompt),
            sampling=sampling,
            coins=coins,
            max_new_tokens=tokens,
        )
        text = tuple(token for step in islice(decoding, steps) for token in step.tokens)
        sides = [side for side, _ in coins.trail]
        finished = len(text) == tokens
        state = None if finished else state_of(branch_target, drafter)
        return _Branch(text, state, sides, coins.weight)

    runs, steps = 0, 0
    # One branch per reached state, with the total weight of all branches that reach it.
    unfinished: list[tuple[_Branch, Weight]] = [(_Branch((), None, [], 1), 1)]
    while unfinished:
        steps += 1
        reached: dict[Hashable, tuple[_Branch, Weight]] = {}
        for before, weight in unfinished:
            for walk, branch in outcomes(partial(play, steps), after=before.sides):
                runs += 1
                share = weight * (walk if before.weight == 1 else walk / before.weight)
                if len(branch.text) == tokens:
                    total[branch.text] = total[branch.text] + share  # pyrefly: ignore[unsupported-operation]
                    continue
                key = object() if branch.state is None else (branch.text, branch.state)
                representative, weight_so_far = reached.get(key, (branch, 0))
                reached[key] = representative, weight_so_far + share
        unfinished = list(reached.values())
    return ExactLaw(total, runs)


class _Branch(NamedTuple):
    """One way through some steps: the text, the state reached, the sides taken, and its probability."""

    text: tuple[int, ...]
    state: Hashable | None
    sides: Sequence[int]
    weight: Weight


def settled(
    target: TabularModel, draft: TabularModel, sampling: Sampling | None, exact: bool
) -> tuple[TabularModel, TabularModel, Sampling]:
    """The models and the sampling setting to compute with: in floats, or in fractions."""
    sampling = sampling or Sampling()
    if not exact:
        return target, draft, sampling
    return exactly(target, sampling), exactly(draft, sampling), AsGiven(sampling.temperature)
