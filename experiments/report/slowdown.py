"""The cost of a step on the machine in its usual state, read from steps of other methods close in time.

**Model.** A step takes (cost of its class) x (slowdown of the machine at that time) x (noise). Methods take
turns step by step, so a burst of other work on the machine hits all of them. The slowdown at a step is the
weighted median of (time / level of their class) over the four steps of *other steady* methods before it
and the four after, weighted by distance in time. The level of a class is the midmean of its adjusted times,
time / slowdown; levels and slowdowns are computed alternately.

**Estimate.** The cost of a method is the sum over classes of (number of all its steps) x (mean of their
adjusted times). A step counts only if the machine was *calm* around it: not much slower than at its
calmest, and even, that is, no neighbour was much slower than the others. The time of the step itself plays
no part in this, nor do the two steps right after it, which may find cold caches. Among these, steps far
from the median of their class are pauses of the machine and set aside, unless one method loses clearly more
time by them than its share of the time explains: then all of them count as cost, and a remark names the
method. If the machine was hardly ever calm, all steps count, and a remark says so. If some method has no
other steady method, totals decide.

**Measured** on the same steps of 20 runs each (`tests/experiments/report/kept_rounds.json`),
against totals, and against
totals without the *rounds* in which a copy of plain decoding was slow: runs in which two identical chains
were told apart, half-width of the interval of their ratio and its standard deviation over runs, runs in
which a chain was found that takes 5 % longer, and the bias of its ratio.

    machine      way         told apart   half-width     sd   5 % found      bias
    restless     totals          0 / 20       3.17 %   1.40     19 / 20   -0.61 %
                 rounds          0 / 20       3.32 %   1.27     18 / 20   -0.36 %
                 slowdown        2 / 20       2.31 %   1.16     20 / 20   -0.54 %
    and bursts   totals          3 / 20       6.75 %   3.20      9 / 20   -0.69 %
                 rounds          1 / 20       5.83 %   2.98      7 / 20   -0.08 %
                 slowdown        1 / 20       3.04 %   1.78     19 / 20   -0.49 %

Most of the noise was in single steps. Setting far steps aside removes it, leaving out rounds does not.

**Failure cases.** Rare expensive steps on a machine that also stops now and then: if they are too few to be
told from its pauses, the method appears cheaper than it is; in simulations the 95 % interval then contained
the truth in 54 to 85 % of runs. A method that a slowdown affects less than others, in a run without long
quiet parts. A growing cache during bursts. A slowdown that lasts as long as one group of methods is open.

**Intervals.** `Adjusted.seconds` holds one value per method and prompt. Resampled over prompts, these
values have, to first order, the variance of the estimator with class counts and sums resampled together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEWEST_STEPS_OF_A_CLASS = 8
"""Classes with fewer steps set none aside, and are not used to read the slowdown of the machine."""

NEIGHBOURS_EACH_SIDE, HALF_WEIGHT_GAPS = 4, 2.0
"""Neighbours from which a slowdown is read, and the distance, in median gaps, that halves their weight."""

MOST_ROUNDS, SETTLED_BELOW = 6, 1e-4
"""Maximum number of rounds of levels and slowdowns, and relative change of levels that ends them."""

CALMEST_SHARE, SLOWEST_COUNTED, CALM_SLOWDOWN, STEPS_IN_THE_WAKE = 0.2, 1.4, 1.2, 2
"""Steps count up to `SLOWEST_COUNTED` times the slowdown of the calmest share, if no neighbour but those in
the wake was slower than the slowdown there by more than `CALM_SLOWDOWN`."""

POWER_OF_DISTRUST = 3
"""Exponent with which the weight of steps falls with a slowdown beyond `CALM_SLOWDOWN`."""

EVEN_SHARE, LEAST_SHARE = 0.5, 0.1
"""All steps count unless the machine was even around at least `EVEN_SHARE` of the steps at which it was not
slow, and at least `LEAST_SHARE` of all steps were calm."""

FAR_IN_MADS, LEAST_FAR_SHARE, FEWEST_FAR_STEPS = 4.0 * 1.4826, 0.05, 4
"""Distance from the median of its class at which a step is far: in MAD, and at least this share of the
median. Fewer far steps in total count as cost."""

EXCESS_SHARE, LIKELIEST_CHANCE, CHANCE_DRAWS = 0.01, (0.03, 0.005), 4000
"""Far steps are a method's own if by them it loses more of its time than the others by `EXCESS_SHARE`, and
if pauses that hit methods at random, in so many draws, rarely cost it as much (in a restless run: more
rarely)."""

NO_NEIGHBOURS = (
    "totals decide: how slow the machine was is seen in the steps of other methods of fixed shape, and for "
    "some method there is none with enough steps"
)
OWN_STEPS = (
    "Caution: rare steps of {methods} are far more expensive than the others, more than pauses of the "
    "machine make them; all such steps count as cost, and so do pauses, which cannot be told from them."
)
RESTLESS = (
    "Caution: the machine changed from step to step for most of the run, so that steps of other methods "
    "tell less of how slow it was; a method with rare expensive steps may look cheaper than it is."
)


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps of M methods under one sampling setting, each with the numbers of its method and prompt.

    Args:
        work: `[S]`, class of the step: steps of the same class do equal work, and are of one method.
        at, seconds: `[S]`, middle of the step on one clock for the whole run, and its duration.
        steady: `[M]`, whether equal steps of the method cost the same each time: fixed shapes and plain
            decoding.
    """

    method: Ints
    prompt: Ints
    work: Ints
    at: Floats
    seconds: Floats
    steady: Bools
    prompts: int

    def totals(self, values: Floats) -> Floats:
        """Sum a value of each step by method and prompt; `[M, P]`."""
        sums = np.zeros((len(self.steady), self.prompts))
        np.add.at(sums, (self.method, self.prompt), values)
        return sums


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Decoding times for the machine in its usual state.

    Args:
        seconds: `[M, P]`, decoding time by method and prompt. The sum over prompts is the cost of a method;
            a single value also holds the prompt's influence on the means of classes, and may be negative.
        of_prompts: `[M, P]`, decoding time of each prompt by itself: all its steps over their slowdown.
        stages: `[M, P]` each, `seconds` of each stage.
        reason: why `seconds` are the plain totals, as a sentence; None if they are adjusted.
        restless: whether the machine was hardly ever calm, so that all steps count.
        own: numbers of the methods with rare expensive steps of their own.
    """

    seconds: Floats
    of_prompts: Floats
    stages: dict[str, Floats] = field(default_factory=dict)
    reason: str | None = None
    restless: bool = False
    own: tuple[int, ...] = ()

    def remark(self, names: Sequence[str]) -> str | None:
        """Remarks on the estimate, as sentences, with these names of methods; None if there are none."""
        methods = " and ".join(names[number] for number in self.own)
        remarks = [RESTLESS] * self.restless + [OWN_STEPS.format(methods=methods)] * bool(self.own)
        return " ".join(remarks) or None


def adjust(steps: Steps, stages: Mapping[str, Floats] | None = None) -> Adjusted:
    """Remove the slowdown of the machine from decoding times, and from times `[S]` of stages."""
    stages = dict(stages or {})
    around = _around(steps)
    if around is None:
        totals = {name: steps.totals(spent) for name, spent in stages.items()}
        seconds = steps.totals(steps.seconds)
        return Adjusted(seconds, seconds, totals, reason=NO_NEIGHBOURS)
    slowdown, calm, trust = _slowdowns(steps, *around)
    restless = not calm.any()
    adjusted = steps.seconds / slowdown
    kept, own = _kept_steps(steps, adjusted, calm | restless, LIKELIEST_CHANCE[restless])
    return Adjusted(
        by_prompt(steps, adjusted, trust * kept),
        steps.totals(adjusted),
        {name: by_prompt(steps, spent / slowdown, trust * kept) for name, spent in stages.items()},
        restless=restless,
        own=own,
    )


def by_prompt(steps: Steps, adjusted: Floats, weight: Floats) -> Floats:
    """Steps at the mean of their class, plus the influence of the prompt on these means; `[M, P]`.

    For prompt p and class c, let n_pc count all steps, W_pc sum their weights, S_pc their weighted times.
    The estimator C = sum_c N_c m_c, m_c = S_c / W_c, with totals over prompts, changes under resampling, to
    first order, like the sum over prompts of sum_c [n_pc m_c + (N_c / W_c) (S_pc - m_c W_pc)]. The second
    terms sum to zero. All is linear in the times, so the values of stages sum to that of the step.
    """
    weights = np.bincount(steps.work, weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (np.bincount(steps.work, weight * adjusted) / weights)[steps.work]
        share = (np.bincount(steps.work) / weights)[steps.work]
    return steps.totals(means + share * weight * (adjusted - means))


def _classes(work: Ints) -> list[Ints]:
    """Indices of the steps of each class."""
    order = np.argsort(work, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(work[order])) + 1) if len(work) else []


def _around(steps: Steps) -> tuple[Ints, Floats] | None:
    """Neighbours of each step among other steady methods, and weights; `[S, 2K]` each, None without."""
    large = np.bincount(steps.work, minlength=1) >= FEWEST_STEPS_OF_A_CLASS
    guides = np.flatnonzero(steps.steady[steps.method] & large[steps.work] & (steps.seconds > 0))
    guides = guides[np.argsort(steps.at[guides], kind="stable")]
    indices = np.zeros((len(steps.at), 2 * NEIGHBOURS_EACH_SIDE), np.int64)
    weights = np.zeros(indices.shape)
    for method in np.unique(steps.method):
        of_method = np.flatnonzero(steps.method == method)
        candidates = guides[steps.method[guides] != method]
        if not len(candidates):
            return None
        times = steps.at[candidates]
        rank = np.searchsorted(times, steps.at[of_method])[:, None]
        rank = rank + np.arange(-NEIGHBOURS_EACH_SIDE, NEIGHBOURS_EACH_SIDE)
        exists = (rank >= 0) & (rank < len(candidates))
        rank = np.clip(rank, 0, len(candidates) - 1)
        gap = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        distance = (times[rank] - steps.at[of_method, None]) / (HALF_WEIGHT_GAPS * gap or 1.0)
        indices[of_method] = candidates[rank]
        weights[of_method] = exists / (1 + distance**2)
    return (indices, weights / weights.sum(1, keepdims=True)) if len(indices) else None


def _slowdowns(steps: Steps, places: Ints, weights: Floats) -> tuple[Floats, Bools, Floats]:
    """The slowdown at each step, whether the machine was calm around it, and its weight; `[S]` each."""
    members_of_classes = _classes(steps.work)
    slowdown, levels = np.ones(len(steps.seconds)), np.ones(int(steps.work.max()) + 1)
    relative = np.ones(places.shape)
    for _ in range(MOST_ROUNDS):
        previous, levels = levels, levels.copy()
        for members in members_of_classes:
            ordered = np.sort(steps.seconds[members] / slowdown[members])
            quarter = len(ordered) // 4
            midmean = ordered[quarter : len(ordered) - quarter].mean()
            levels[steps.work[members[0]]] = midmean if midmean > 0 else 1.0
        if np.abs(levels / previous - 1).max() < SETTLED_BELOW:
            break
        relative = (steps.seconds / levels[steps.work])[places]
        slowdown = _weighted_median(relative, weights)
    calmest = np.quantile(slowdown, CALMEST_SHARE)
    fast = slowdown <= SLOWEST_COUNTED * calmest
    uneven = (weights > 0) & (relative > CALM_SLOWDOWN * slowdown[:, None])
    uneven[:, NEIGHBOURS_EACH_SIDE : NEIGHBOURS_EACH_SIDE + STEPS_IN_THE_WAKE] = False
    even = np.logical_not(np.any(uneven, axis=1))
    calm = fast & even
    if even[fast].mean() < EVEN_SHARE or calm.mean() < LEAST_SHARE:
        calm = np.zeros_like(calm)
    trust = np.minimum(1, CALM_SLOWDOWN * calmest / slowdown) ** POWER_OF_DISTRUST
    usual = _weighted_median(slowdown[None], trust[None] / trust.sum())[0]
    return slowdown / usual, calm, trust


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """The weighted median of each row, between its two middle values; weights sum to 1 per row."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, 1)
    weights = np.take_along_axis(weights, order, 1)
    midpoints = np.cumsum(weights, 1) - weights / 2
    if values.shape[1] == 1:
        return values[:, 0]
    rows = np.arange(len(values))
    upper = np.maximum((midpoints >= 0.5).argmax(1), 1)
    # no midpoint reaches one half: the last value with a weight holds more than half of the total
    upper = np.where((midpoints >= 0.5).any(1), upper, values.shape[1] - 1)
    low, high = midpoints[rows, upper - 1], midpoints[rows, upper]
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = np.where(high > low, np.clip((0.5 - low) / (high - low), 0, 1), 0.5)
    return values[rows, upper - 1] * (1 - fraction) + values[rows, upper] * fraction


def _kept_steps(
    steps: Steps, adjusted: Floats, calm: Bools, chance: float
) -> tuple[Bools, tuple[int, ...]]:
    """Which steps count, and the methods with rare expensive steps of their own."""
    small = np.bincount(steps.work, calm)[steps.work] < FEWEST_STEPS_OF_A_CLASS
    kept, candidates = calm | small, np.flatnonzero(calm & ~small)
    far, medians = np.zeros(len(kept), bool), np.ones(len(kept))
    for members in _classes(steps.work[candidates]):
        indices = candidates[members]
        median = np.median(adjusted[indices])
        deviation = np.abs(adjusted[indices] - median)
        limit = max(FAR_IN_MADS * np.median(deviation), LEAST_FAR_SHARE * median)
        far[indices], medians[indices] = deviation > limit, median
    if far.sum() < FEWEST_FAR_STEPS:
        return kept, ()
    lost = (np.maximum(adjusted - medians, 0) * far)[candidates]
    own = _own_steps(steps.method[candidates], medians[candidates], lost, chance)
    return (kept, own) if own else (kept & ~far, ())


def _own_steps(method: Ints, usual: Floats, lost: Floats, chance: float) -> tuple[int, ...]:
    """Methods that lose more time by far steps than pauses of the machine explain.

    A pause hits a method with the share of its steps in the time. A few long pauses make up most of the
    loss, so it is simulated.
    """
    pauses = lost[lost > 0]
    loss, share = np.bincount(method, lost), np.bincount(method, usual) / usual.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (loss / share - (loss.sum() - loss) / (1 - share)) / usual.sum()
    rng, own = np.random.default_rng(0), []
    for suspect in np.flatnonzero(excess > EXCESS_SHARE).tolist():
        by_chance = 0
        for _ in range(CHANCE_DRAWS // 100):  # drawing in blocks bounds memory
            hit = rng.random((100, len(pauses)), np.float32) < share[suspect]
            by_chance += np.count_nonzero(hit @ pauses >= loss[suspect] * (1 - 1e-9))
        if by_chance <= chance * CHANCE_DRAWS:
            own.append(suspect)
    return tuple(own)
