"""Remove the machine's slowdown from times in the simplest way: by the nearest step of each other method.

`report.slowdown` began with this scheme; `studies.interleaved_estimator` compares the two.

- The slowdown f at a step is the median over the *other steady* methods of (time of their nearest step /
  level of its class). Levels are midmeans of adjusted times, time / f. Slowdowns and levels are computed
  alternately, four times.
- Within a class, steps have the weight min(1, f20 / f)^2, where f20 is the 20 % quantile of f. Adjusted
  times further than max(4 scaled MAD, 5 %) from the median of their class are set aside; classes of fewer
  than 8 steps keep all of them.
- The cost of a method is the sum over its classes of (number of all steps x weighted mean of the class).
- Totals decide where no other method is steady. They also decide where the shares that methods have set
  aside among quiet steps (f at most 1.2 f20) differ by more than one point, so that no real cost is set
  aside.

The last rule is a trade-off, so the simulation has both variants: without it, a method with rare expensive
steps looks several percent too cheap; with it, bursts alone make totals decide.
"""

import numpy as np

from treespec.experiments.report.slowdown import by_prompt, midmean
from treespec.experiments.report.timed_steps import Bools, Floats, Ints, Steps, classes, totals

__all__ = ["nearest_steps"]

ROUNDS = 4
FEWEST_STEPS = 8
FAR_MAD, FAR_SHARE = 4 * 1.4826, 0.05
QUIET = 1.2
MOST_APART = 0.01
"""Largest allowed difference between the shares set aside among quiet steps."""


def nearest_steps(steps: Steps, most_apart: float = MOST_APART) -> Floats:
    """Compute decoding times by this scheme.

    Args:
        steps: steps of all methods.
        most_apart: totals decide if the shares set aside differ by more than this; 1 for never.

    Returns:
        `[M, P]`, seconds by method and prompt; resampling over prompts gives intervals, as for
        `report.slowdown.Adjusted.seconds`.
    """
    nearest = _nearest(steps)
    if nearest is None:
        return totals(steps, steps.seconds)
    slowdown = np.ones(len(steps.seconds))
    for _ in range(ROUNDS):
        levels = _midmeans(steps.work, steps.seconds / slowdown)
        ratio = np.append(steps.seconds / levels[steps.work], np.nan)
        slowdown = np.nanmedian(ratio[nearest], axis=1)
    adjusted, calmest = steps.seconds / slowdown, np.quantile(slowdown, 0.2)
    weight = np.minimum(1, calmest / slowdown) ** 2
    aside = _far(steps.work, adjusted)
    quiet = slowdown <= QUIET * calmest
    counts = np.bincount(steps.method, quiet, len(steps.steady))
    shares = np.bincount(steps.method, quiet & aside, len(steps.steady)) / np.maximum(counts, 1)
    if np.ptp(shares) > most_apart:
        return totals(steps, steps.seconds)
    return by_prompt(steps, adjusted, weight * ~aside)


def _nearest(steps: Steps) -> Ints | None:
    """For each step, the index of the nearest step in time of each steady method, `[S, methods]`.

    -1, the index of a NaN, stands for the method itself and for methods that are not steady. None if a step
    has no steady method to compare with.
    """
    nearest = np.full((len(steps.at), len(steps.steady)), -1)
    for guide in np.flatnonzero(steps.steady):
        indices = np.flatnonzero((steps.method == guide) & (steps.seconds > 0))
        indices = indices[np.argsort(steps.at[indices], kind="stable")]
        if not len(indices):
            continue
        at = steps.at[indices]
        after = np.clip(np.searchsorted(at, steps.at), 1, max(len(at) - 1, 1))
        before, after = after - 1, np.minimum(after, len(at) - 1)
        closer = np.abs(at[before] - steps.at) <= np.abs(at[after] - steps.at)
        others = steps.method != guide
        nearest[others, guide] = indices[np.where(closer, before, after)][others]
    return None if (nearest < 0).all(1).any() else nearest


def _midmeans(work: Ints, values: Floats) -> Floats:
    """The mean of the middle half of each class; 1 for a class without steps."""
    levels = np.ones(int(work.max()) + 1)
    for members in classes(work):
        levels[work[members[0]]] = midmean(values[members]) or 1.0
    return levels


def _far(work: Ints, adjusted: Floats) -> Bools:
    """For each step, whether its time lies far from the median of its class."""
    far = np.zeros(len(work), bool)
    for members in classes(work):
        if len(members) < FEWEST_STEPS:
            continue
        median = np.median(adjusted[members])
        off = np.abs(adjusted[members] - median)
        far[members] = off > max(FAR_MAD * np.median(off), FAR_SHARE * median)
    return far
