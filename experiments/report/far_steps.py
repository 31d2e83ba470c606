"""Which steps count as cost, and which are pauses: steps far from the usual time of their work.

Part of the estimator of `report.slowdown`, whose docstring has the model, assumptions and failure cases.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from treespec.experiments.report.timed_steps import (
    FEWEST_STEPS_OF_A_CLASS,
    Bools,
    Floats,
    Ints,
    Steps,
    classes,
)

__all__ = ["dear_apart", "kept_steps"]

FAR_IN_MADS, LEAST_FAR_SHARE = 4.0, 0.05
"""Distance from the median of its class at which a step is far: in scaled MAD, and at least this share of
the median."""

FEWEST_FAR_STEPS = 4
"""Fewer steps far from their median count as cost, because so few may be a method's own."""

EXCESS_SHARE, CHANCE_DRAWS, DRAWS_PER_BLOCK = 0.01, 4000, 100
"""Far steps are a method's own if it loses a larger share of its time by them than the others, by at least
`EXCESS_SHARE`, and if pauses that hit methods at random, drawn `CHANCE_DRAWS` times, hardly ever cost it as
much. Drawing in blocks bounds memory."""

DEAR_FACTOR, FEWEST_DEAR_STEPS = 2.5, 5
"""Steps of a method with dear steps that take more than `DEAR_FACTOR` times the median of their class are a
class of their own, if at least `FEWEST_DEAR_STEPS` of them count: a resample of the prompts should hold
some of them. At the edges of bursts, where the slowdown is read worst, any step may seem up to twice as
dear as it is."""

_MAD = 1.4826


def kept_steps(
    steps: Steps, adjusted: Floats, calm: Bools, luck: float
) -> tuple[Bools, tuple[int, ...]]:
    """Which steps count, and the methods with rare dear steps of their own."""
    # calm does not depend on the time of the step itself, so no genuine cost is set aside
    in_small_class = np.bincount(steps.work, calm)[steps.work] < FEWEST_STEPS_OF_A_CLASS
    kept = calm | in_small_class
    candidates = np.flatnonzero(calm & ~in_small_class)
    far = np.zeros(len(kept), bool)
    medians = np.ones(len(kept))
    for members in classes(steps.work[candidates]):
        indices = candidates[members]
        median = np.median(adjusted[indices])
        deviation = np.abs(adjusted[indices] - median)
        far[indices] = deviation > max(
            FAR_IN_MADS * _MAD * np.median(deviation), LEAST_FAR_SHARE * median
        )
        medians[indices] = median
    if far.sum() < FEWEST_FAR_STEPS:
        return kept, ()
    lost = np.maximum(adjusted - medians, 0)
    dear = _own_dear_steps(
        steps.method[candidates], medians[candidates], (lost * far)[candidates], luck
    )
    return (kept, dear) if dear else (kept & ~far, ())


def _own_dear_steps(method: Ints, usual: Floats, lost: Floats, luck: float) -> tuple[int, ...]:
    """Methods that lose more time by far steps than pauses of the machine explain.

    A pause hits a method with a probability equal to the share of its steps in the time. The loss that
    results is simulated, because a few long pauses make up most of it and its distribution is far from
    normal.
    """
    pauses = lost[lost > 0]
    loss, share = np.bincount(method, lost), np.bincount(method, usual) / usual.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (loss / share - (loss.sum() - loss) / (1 - share)) / usual.sum()
    rng, dear = np.random.default_rng(0), []
    for suspect in np.flatnonzero(excess > EXCESS_SHARE).tolist():
        by_chance = 0
        for _ in range(CHANCE_DRAWS // DRAWS_PER_BLOCK):
            hit = rng.random((DRAWS_PER_BLOCK, len(pauses)), np.float32) < share[suspect]
            by_chance += np.count_nonzero(hit @ pauses >= loss[suspect] * (1 - 1e-9))
        if by_chance <= luck * CHANCE_DRAWS:
            dear.append(suspect)
    return tuple(dear)


def dear_apart(steps: Steps, adjusted: Floats, kept: Bools, dear: Sequence[int]) -> Steps:
    """The steps, with the dearest of these methods in classes of their own.

    There are few of them. If they stayed in their class, it would be left to chance how many of them are
    among the steps that count, and the cost of the method would vary with it.
    """
    work = steps.work.copy()
    for members in classes(steps.work):
        counted = members[kept[members]]
        if steps.method[members[0]] in dear and len(counted):
            apart = members[adjusted[members] > DEAR_FACTOR * np.median(adjusted[counted])]
            if kept[apart].sum() >= FEWEST_DEAR_STEPS:
                work[apart] = work.max() + 1
    return replace(steps, work=np.unique(work, return_inverse=True)[1].astype(np.int64))
