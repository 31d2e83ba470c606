"""The plainest way to take the slowdown of the machine out of times: the nearest step of each other method.

`report.slowdown` began with it; `studies.interleaved_estimator` holds the two beside each other.

- The slowdown f at a step is the median over the *other steady* methods of (their step nearest in time /
  level of its class). Levels are midmeans of adjusted times, time / f; both are found in turn, four times.
- Within a class steps weigh min(1, f20 / f)^2, f20 the 20 % quantile of f. Adjusted times that lie further
  than max(4 scaled MAD, 5 %) from the median of their class are set aside; classes of fewer than 8 steps
  keep all.
- The cost of a method is the sum over its classes of (number of all steps x weighted mean of the class).
- Totals decide where no other method is steady, and, so that no honest cost is set aside, where the shares
  that methods have set aside among quiet steps (f at most 1.2 f20) differ by more than one point.

The last rule is a choice between two evils, so both stand in the simulation: without it a method with rare
dear steps looks several percent too cheap, with it bursts alone make totals decide.
"""

import numpy as np
from numpy.typing import NDArray

from treespec.experiments.report.slowdown import Steps, by_prompt, totals

__all__ = ["nearest_steps"]

ROUNDS = 4
FEWEST_STEPS = 8
FAR_MAD, FAR_SHARE = 4 * 1.4826, 0.05
QUIET = 1.2
MOST_APART = 0.01
"""Shares set aside among quiet steps may differ by so much."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def nearest_steps(steps: Steps, most_apart: float = MOST_APART) -> Floats:
    """Decoding times as this scheme has them.

    Args:
        steps: of all methods.
        most_apart: the difference between the shares set aside beyond which totals decide; 1 for never.

    Returns:
        `[M, P]`, seconds by method and prompt; resampled over prompts they give intervals as
        `report.slowdown.Adjusted.seconds` does.
    """
    near = _nearest(steps)
    if near is None:
        return totals(steps, steps.seconds)
    slowdown = np.ones(len(steps.seconds))
    for _ in range(ROUNDS):
        levels = _midmeans(steps.work, steps.seconds / slowdown)
        ratio = np.append(steps.seconds / levels[steps.work], np.nan)
        slowdown = np.nanmedian(ratio[near], axis=1)
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
    """`[S, methods]`, the place of the step of each steady method that is nearest in time to each step.

    -1, the place of a NaN, for a method itself and for those that are not steady; None if a method is left
    without any.
    """
    near = np.full((len(steps.at), len(steps.steady)), -1)
    for guide in np.flatnonzero(steps.steady):
        places = np.flatnonzero((steps.method == guide) & (steps.seconds > 0))
        places = places[np.argsort(steps.at[places], kind="stable")]
        if not len(places):
            continue
        at = steps.at[places]
        after = np.clip(np.searchsorted(at, steps.at), 1, max(len(at) - 1, 1))
        before, after = after - 1, np.minimum(after, len(at) - 1)
        closer = np.abs(at[before] - steps.at) <= np.abs(at[after] - steps.at)
        others = steps.method != guide
        near[others, guide] = places[np.where(closer, before, after)][others]
    return None if (near < 0).all(1).any() else near


def _midmeans(work: Ints, values: Floats) -> Floats:
    """The mean of the middle half of each class; 1 of a class without steps."""
    levels = np.ones(int(work.max()) + 1)
    for kind in np.unique(work):
        ordered = np.sort(values[work == kind])
        quarter = len(ordered) // 4
        levels[kind] = ordered[quarter : len(ordered) - quarter].mean() or 1.0
    return levels


def _far(work: Ints, adjusted: Floats) -> NDArray[np.bool_]:
    """Which steps lie far from the median of their class."""
    far = np.zeros(len(work), bool)
    for kind in np.unique(work):
        members = np.flatnonzero(work == kind)
        if len(members) < FEWEST_STEPS:
            continue
        median = np.median(adjusted[members])
        off = np.abs(adjusted[members] - median)
        far[members] = off > max(FAR_MAD * np.median(off), FAR_SHARE * median)
    return far
