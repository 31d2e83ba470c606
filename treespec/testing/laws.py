"""Exact output laws, by enumeration of the drafter's and the rule's own code over tables."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.decoding import decode
from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.models.tabular import TabularModel
from treespec.protocols import Growth, Verifier
from treespec.target.model import ModelTarget
from treespec.testing.coins import EnumeratingCoins, Weight, outcomes
from treespec.testing.exact import AsGiven, exactly
from treespec.testing.states import state_of
from treespec.testing.step_oracle import DraftWith, ExactLaw, SampledTable, StepOracle
from treespec.tree import Law, TreeShape

__all__ = ["output_law", "settled", "step_law", "target_law"]


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
    return SampledTable(target, sampling).law(context, tokens)


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
    """The law of one step's emitted tokens, completed by the target's own law to depth + 1 tokens.

    A rule is lossless for this tree if and only if this is `target_law` of depth + 1 tokens.

    Args:
        verifier: the rule.
        shape: the tree to draft, or a growth.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: of target and draft.
        draft_with: makes the drafter.
        exact: compute in fractions, from the tables' float probabilities taken as they are.
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
    """The joint law of the next tokens through the real `decode`, every coin on every side.

    Unlike `step_law` this runs several steps, so it also sees what is handed from step to step: pending
    tokens, committed rows, caches that were not cut. Every branch decodes from the prompt, with a target
    and a drafter of its own. Branches that after a step have the same text, and whose target and drafter
    remember the same (`treespec.testing.states`), have one future, which is walked once. So the cost grows
    with the number of steps times the states that they lead to; if a drafter keeps what cannot be
    compared, with the branches of a step to the power of the number of steps.

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
        exact: compute in fractions, from the tables' float probabilities taken as they are.
    """
    target, draft, sampling = settled(target, draft, sampling, exact)
    total = SampledTable(target, sampling).law(prompt, tokens) * 0

    def play(passes: int, coins: EnumeratingCoins) -> _Branch:
        its_target, drafter = target_with(target), draft_with(draft, shape, law, sampling)
        steps = decode(
            its_target,
            drafter,
            verifier,
            torch.tensor(prompt),
            sampling=sampling,
            coins=coins,
            max_new_tokens=tokens,
        )
        text = tuple(token for step in islice(steps, passes) for token in step.tokens)
        sides = [side for side, _ in coins.trail]
        over = len(text) == tokens
        return _Branch(text, None if over else state_of(its_target, drafter), sides, coins.weight)

    runs, passes = 0, 0
    # One branch for each state that is reached, with the weight of all that reach it.
    standing: list[tuple[_Branch, Weight]] = [(_Branch((), None, [], 1), 1)]
    while standing:
        passes += 1
        reached: dict[Hashable, tuple[_Branch, Weight]] = {}
        for before, weight in standing:
            for walk, branch in outcomes(partial(play, passes), after=before.sides):
                runs += 1
                part = weight * (walk if before.weight == 1 else walk / before.weight)
                if len(branch.text) == tokens:
                    total[branch.text] = total[branch.text] + part  # pyrefly: ignore[unsupported-operation]
                    continue
                key = object() if branch.state is None else (branch.text, branch.state)
                first, others = reached.get(key, (branch, 0))
                reached[key] = first, others + part
        standing = list(reached.values())
    return ExactLaw(total, runs)


class _Branch(NamedTuple):
    """One way through some steps: what came out, where it stands, and how it came there."""

    text: tuple[int, ...]
    state: Hashable | None
    sides: Sequence[int]
    weight: Weight


def settled(
    target: TabularModel, draft: TabularModel, sampling: Sampling | None, exact: bool
) -> tuple[TabularModel, TabularModel, Sampling]:
    """The models and the setting in which to compute: floats as they are, or fractions."""
    sampling = sampling or Sampling()
    if not exact:
        return target, draft, sampling
    return exactly(target, sampling), exactly(draft, sampling), AsGiven(sampling.temperature)
