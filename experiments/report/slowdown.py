"""What a step costs on the machine as it mostly is, from steps of other methods close in time.

**Model.** A step takes (cost of its class) x (slowdown of the machine at that time) x (noise). Methods
take turns by steps, so that a burst of work beside the run meets all of them; the slowdown at a step is
read from the steps of *other steady* methods around it: the weighted median of (time / level of their
class) over the four before and the four after it, weighted by distance in time. A level is the midmean
of the class's adjusted times, time / slowdown; levels and slowdowns are found in turn.

**Estimate.** The cost of a method is the sum over classes of the number of all its steps times the mean
of the adjusted times, in which steps on a slow machine weigh less. A step counts only where the machine
was *calm* around it: not much slower than at its calmest, and no neighbour much slower than the others.
What the step itself took plays no part in that, so that no honest cost is set aside. Among the steps
that are left, those far from the median of their class are taken for pauses of the machine, and set
aside, if there are several and methods lose by them as the time that they take says; if one method
loses clearly more than that, they count as cost, and a remark names it. If the machine changed from step
to step, so that it was calm almost nowhere, all steps count, and a remark says that. Totals decide, and
a reason says so, if a method has no steady other one.

**Assumptions.** Slowdowns last longer than a step and slow all methods down alike; equal steps of
steady methods cost the same; classes hold equal work.

**Intervals.** `Adjusted.seconds` holds one value for each method and prompt. Resampled over prompts,
these have to first order the variance of the estimator, with tokens, class counts and weighted class
sums resampled together. Its bounds are those of the joint bootstrap within 5 % of the interval's width
at 12 and 24 prompts, on the mean over runs (`tests/experiments/report/test_slowdown.py`).

**Simulated** by `python -m treespec.experiments.studies.interleaved_estimator` (1,000 experiments a row,
12 prompts of 48 tokens, steps of 4 to 20 ms; made-up machines: bursts slow steps 1.6 to 3 times for 0.7
s of 2 s, drift goes up to 30 %, stalls stop the machine for some 50 ms every 2 s, steady contention
slows it 1.2 to 3.2 times, anew every 4 ms). Standard deviation of the ratio of costs and, of this
file's estimate, also the bias, the median half-width and the coverage of the 95 % interval, in percent:

                                by prompts  totals  adjusted    bias  half-width  coverage
    A/A               quiet           0.35    0.19      0.19   -0.00        0.50      98.3
                      bursts          13.7    1.07      0.23   +0.01        0.59      97.8
                      drift           0.48    0.19      0.20   -0.00        0.50      98.0
                      stalls          4.08    4.00      2.08   -0.04        0.54      95.9
                      steady          3.44    1.19      1.23   +0.02        3.18      97.1
    5 % dearer        quiet           0.35    0.19      0.20   +0.01        0.49      97.5
                      bursts          13.9    1.03      0.24   +0.00        0.58      96.8
    several classes   quiet           0.34    0.20      0.21   +0.01        11.2      94.8
                      bursts          13.5    2.26      0.26   -0.01        11.0      93.4
    rare dear steps   quiet           0.36    0.20      0.28   -0.02         6.8      94.6
    (1 in 50, x 5)    bursts          14.2    1.67      2.10   -0.21         7.8      94.4
                      stalls          4.11    4.07      4.76   -1.47         7.7      57.0
    a cache grows     quiet           0.35    0.19      0.21   -0.10        0.94      96.7
    (step + 30 %)     bursts          14.1    1.06      0.77   -0.08        2.07      97.3
    two methods only  bursts          13.2    0.88      0.36   -0.01        0.93      97.3
    one feels less    bursts          11.9    0.90      0.24   +0.18        0.59      93.6
    (slowdown ^ 0.8)  drift           0.44    0.19      0.19   -2.44        1.24       0.0

The same on slowdowns that were recorded on two cores of an Intel Xeon (`benchmarks.slowdown_traces`), where
nine in ten equal pieces of work take 0.93 to 1.10 times their median on the quiet machine, up to 3.3 times
in bursts and 9 times in steady contention:

                                by prompts  totals  adjusted    bias  half-width  coverage
    A/A               quiet           1.61    0.67      0.43   -0.01        0.83      93.7
                      bursts          16.4    3.42      0.52   +0.01        0.90      95.7
                      drift           3.09    1.13      1.04   +0.07        2.47      96.1
                      stalls          3.20    2.71      1.38   +0.02        0.86      94.3
                      steady          5.30    2.44      4.40   +0.16        7.93      88.4
    5 % dearer        quiet           1.56    0.69      0.41   +0.05        0.83      95.3
                      bursts          15.4    3.43      0.57   +0.03        0.91      93.5
                      drift           3.20    1.13      0.97   -0.02        2.39      97.3
                      stalls          3.14    2.66      1.51   +0.04        0.89      92.8
    several classes   quiet           1.54    0.74      0.51   +0.26        11.1      95.0
                      bursts          14.6    4.38      0.61   +0.19        11.2      95.4
                      drift           3.06    1.39      1.32   +0.35        11.5      95.3
                      stalls          3.03    2.56      1.49   +0.24        11.2      94.8
    rare dear steps   quiet           1.68    0.70      1.90   -0.11         7.6      88.5
    (1 in 50, x 5)    bursts          15.5    3.98      3.21   -1.06         8.2      74.7
                      drift           3.20    1.27      4.20   -1.25         7.4      63.9
                      stalls          3.17    2.81      4.11   -0.90         8.8      66.5
    a cache grows     quiet           1.59    0.66      0.66   +0.30        1.59      93.7
    (step + 30 %)     bursts          15.1    3.45      1.12   +0.14        2.24      91.6
                      drift           3.11    1.13      1.35   +0.39        3.27      96.0
                      stalls          3.15    2.79      1.42   +0.27        1.77      93.1
    two methods only  bursts          15.9    3.02      0.88   +0.01        1.28      90.7

**Failure cases.** Contention that changes within a step, on all cores: unbiased, in intervals that are a
quarter to a half wider than those of totals, and hold the truth in 88 % of runs on the recorded machine; in
76 %, 2 % too cheap, where the method has rare dear steps of its own.
But where bursts meet a machine that is restless even without them, totals are 10 to 25 % wide and these
intervals 1 to 6 % (12 runs of `benchmarks.interleaving`); they hold the truth in 90 to 92 % of simulated
runs on such a machine, and in 55 to 61 % for rare dear steps. A method that feels a slowdown less than
others, where no part of the run is quiet: biased as totals are (the last row of the first table; 1 to 5 %
on the recorded machine, 13 to 22 % in steady contention). Rare dear steps on a machine that also stops now
and then: where they are too few to be told from its pauses they are set aside, and in these runs the
method looks some percent cheaper than it is, in intervals that are too narrow. A cache that grows, in
bursts: intervals are a little too narrow. Fewer than four far steps in all are cost, so that
one pause of the machine may remain in a short run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adjusted", "Steps", "adjust", "by_prompt", "slowdowns", "totals"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEIGHBOURS_EACH_SIDE = 4
"""Steps of other steady methods before a step, and as many after it, that say how slow the machine was."""

HALF_WEIGHT_GAPS = 2.0
"""Neighbours so many mean gaps away weigh half."""

MOST_ROUNDS, SETTLED_BELOW = 6, 1e-4
"""Levels and slowdowns are found in turn, at most so often; levels that move by less have settled."""

CALMEST_SHARE, CALM_SLOWDOWN = 0.2, 1.2
"""Steps less than this much slower than the calmest fifth weigh alike, those beyond it less; and the
machine was even around a step where no neighbour was slower by more than this."""

POWER_OF_DISTRUST = 3
"""Power of the slowdown by which the weight of slow steps falls."""

FAR_IN_MADS, LEAST_FAR_SHARE = 4.0, 0.05
"""A step is far from the median of its class by so many scaled MAD, and at least so far, as a share."""

FEWEST_STEPS_OF_A_CLASS = 8
"""Classes with fewer steps left set none aside, and say nothing about the machine."""

SLOWEST_COUNTED = 1.4
"""Steps slower than the calmest fifth by more are set aside."""

EVEN_SHARE, LEAST_SHARE = 0.5, 0.1
"""All steps count, whatever was around them, unless the machine was even around so many of the steps that
it did not slow down, and these steps are so many of all."""

FEWEST_FAR_STEPS = 4
"""Fewer steps far from their median count as cost: what is rare may be a method's own."""

EXCESS_SHARE, CHANCE_DRAWS, DRAWS_PER_BLOCK = 0.01, 4000, 100
"""Far steps are a method's own where it loses so much more of its time by them than the others do, and
where pauses that hit methods by chance, drawn so many times, would hardly ever cost it as much. Drawn in
blocks, which bound the memory."""

LIKELIEST_CHANCE, LIKELIEST_CHANCE_IF_RESTLESS = 0.03, 0.005
"""How often is hardly ever. To suspect a method wrongly makes intervals wider, to miss one makes them
wrong: so it takes little, but more where all steps count, those on a slow machine too."""

NO_NEIGHBOURS = (
    "totals decide: how slow the machine was is seen in the steps of other methods of fixed shape, and for "
    "some method there is none with enough steps"
)
DEAR_STEPS = (
    "Caution: rare steps of {methods} are far dearer than the others, more than pauses of the machine make "
    "them; all such steps count as cost, and so do pauses, which cannot be told from them."
)
RESTLESS = (
    "Caution: the machine changed from step to step for most of the run, so that steps of other methods "
    "tell less of how slow it was; a method with rare dear steps of its own may look cheaper than it is."
)

_MAD = 1.4826


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps of all methods under one sampling setting, in one run; S steps of M methods.

    Args:
        method: `[S]`, number of the method.
        prompt: `[S]`, number of the prompt among the P compared ones.
        work: `[S]`, class of the step: steps of one method with the same number do equal work. Classes are
            numbered over all methods.
        at: `[S]`, middle of the step, in seconds on one clock for the whole run.
        seconds: `[S]`, that it took.
        steady: `[M]`, whether equal steps of the method cost the same each time: fixed shapes, plain
            decoding. Only these say how slow the machine was.
        prompts: P, if the last prompts have no step at all.

    Raises:
        ValueError: if arrays differ in length, a time is negative or not finite, or steps of two methods
            are in one class.
    """

    method: Ints
    prompt: Ints
    work: Ints
    at: Floats
    seconds: Floats
    steady: Bools
    prompts: int = 0

    def __post_init__(self) -> None:
        columns = self.method, self.prompt, self.work, self.at, self.seconds
        if len({np.shape(column) for column in columns}) > 1 or self.method.ndim != 1:
            raise ValueError("the columns of steps differ in length")
        if not (np.isfinite(self.at).all() and np.isfinite(self.seconds).all()):
            raise ValueError("a step has no place in time, or no duration")
        if (self.seconds < 0).any():
            raise ValueError("a step took less than no time")
        owner = np.zeros(self.work.max(initial=0) + 1, np.int64)
        owner[self.work] = self.method
        if (owner[self.work] != self.method).any():
            raise ValueError("steps of two methods are in one class of equal work")

    @property
    def shape(self) -> tuple[int, int]:
        """Methods and prompts."""
        prompts = int(self.prompt.max()) + 1 if len(self.prompt) else 0
        return len(self.steady), max(self.prompts, prompts)


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Decoding times as they would be on the machine as it mostly is; see the head of the file.

    Args:
        slowdown: `[S]`, see `slowdowns`; ones where totals decide.
        kept: `[S]`, whether the step was not set aside.
        weight: `[S]`, of the step within its class.
        seconds: `[M, P]`, adjusted decoding time by method and prompt. Added up over prompts it is the sum
            over classes of the number of all steps times the weighted mean of the class.
        stages: `[M, P]` each, the parts of `seconds` that were spent in the stages.
        reason: why `seconds` are the plain totals, as a sentence; None if they are not.
        restless: whether the machine changed from step to step, so that all steps count.
        dear: numbers of the methods that have rare dear steps of their own, for which steps far from the
            median of their class count as cost.
    """

    slowdown: Floats
    kept: Bools
    weight: Floats
    seconds: Floats
    stages: dict[str, Floats] = field(default_factory=dict)
    reason: str | None = None
    restless: bool = False
    dear: tuple[int, ...] = ()

    def remark(self, names: Sequence[str]) -> str | None:
        """What else is to be said about the estimate, in sentences.

        Args:
            names: of the methods.
        """
        *first, last = [names[number] for number in self.dear] or [""]
        methods = f"{', '.join(first)} and {last}" if first else last
        said = [RESTLESS] * self.restless + [DEAR_STEPS.format(methods=methods)] * bool(self.dear)
        return " ".join(said) or None


def slowdowns(steps: Steps) -> Floats:
    """How much slower the machine was at each step than it mostly was; 1 for most of a quiet run.

    Args:
        steps: of all methods.

    Returns:
        `[S]`.

    Raises:
        ValueError: if a method has no steady other one, so that nothing is known about its steps.
    """
    around = _around(steps)
    if around is None:
        raise ValueError(NO_NEIGHBOURS)
    return _slowdowns(steps, *around)[0]


def adjust(steps: Steps, stages: Mapping[str, Floats] | None = None) -> Adjusted:
    """Take the slowdown of the machine out of decoding times.

    Args:
        steps: of all methods.
        stages: `[S]` each, seconds of each step that were spent in a stage.

    Returns:
        The adjusted times; the totals, with the reason, where they cannot be adjusted.
    """
    stages = dict(stages or {})
    around = _around(steps)
    if around is None:
        return _left_to_totals(steps, stages, NO_NEIGHBOURS)
    slowdown, calm = _slowdowns(steps, *around)
    restless = not calm.any()
    adjusted, weight = steps.seconds / slowdown, _trust(slowdown)
    luck = LIKELIEST_CHANCE_IF_RESTLESS if restless else LIKELIEST_CHANCE
    kept, dear = _kept(steps, adjusted, calm | restless, luck)
    return Adjusted(
        slowdown=slowdown,
        kept=kept,
        weight=weight,
        seconds=by_prompt(steps, adjusted, weight * kept),
        stages={
            name: by_prompt(steps, spent / slowdown, weight * kept)
            for name, spent in stages.items()
        },
        restless=restless,
        dear=dear,
    )


def _left_to_totals(steps: Steps, stages: Mapping[str, Floats], reason: str) -> Adjusted:
    ones = np.ones(len(steps.seconds))
    return Adjusted(
        slowdown=ones,
        kept=ones > 0,
        weight=ones,
        seconds=totals(steps, steps.seconds),
        stages={name: totals(steps, spent) for name, spent in stages.items()},
        reason=reason,
    )


def totals(steps: Steps, values: Floats) -> Floats:
    """The sums of a value of each step, by method and prompt; `[M, P]`."""
    sums = np.zeros(steps.shape)
    np.add.at(sums, (steps.method, steps.prompt), values)
    return sums


def by_prompt(steps: Steps, adjusted: Floats, weight: Floats) -> Floats:
    """Steps at the mean of their class, and the influence of the prompt on these means; `[M, P]`.

    By prompt p and class c, n counts all steps, W adds up the weights of kept ones and S their weighted
    times. The estimator C = sum_c N_c S_c / W_c, of the totals N, S and W over prompts, has at these totals
    the differential sum_c (m_c dN_c + (N_c / W_c) (dS_c - m_c dW_c)), m_c = S_c / W_c. A resampling of
    prompts changes C, to first order, as it changes the sum of

        sum_c [n_pc m_c + (N_c / W_c) (S_pc - m_c W_pc)]

    whose second parts add up to nothing, so that C itself is the sum over all prompts. S is linear in
    times, and so is all of it: the parts of stages add up to the whole.

    Args:
        steps: of all methods.
        adjusted: `[S]`, times to take the means of.
        weight: `[S]`, of the step within its class; 0 sets it aside.
    """
    counts = np.bincount(steps.work)
    weights = np.bincount(steps.work, weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (np.bincount(steps.work, weight * adjusted) / weights)[steps.work]
        share = (counts / weights)[steps.work]
    return totals(steps, means + share * weight * (adjusted - means))


def _around(steps: Steps) -> tuple[Ints, Floats] | None:
    """Neighbours of each step among the steps of other steady methods, and their weights.

    Returns:
        Places `[S, 2K]` and weights `[S, 2K]`, which add up to 1; None if some method has no neighbours.
    """
    large = np.bincount(steps.work, minlength=1) >= FEWEST_STEPS_OF_A_CLASS
    usable = steps.steady[steps.method] & large[steps.work] & (steps.seconds > 0)
    guides = np.flatnonzero(usable)
    guides = guides[np.argsort(steps.at[guides], kind="stable")]
    places = np.zeros((len(steps.at), 2 * NEIGHBOURS_EACH_SIDE), np.int64)
    weights = np.zeros(places.shape)
    for method in np.unique(steps.method):
        mine = np.flatnonzero(steps.method == method)
        others = guides[steps.method[guides] != method]
        if not len(others):
            return None
        at = steps.at[others]
        first = np.searchsorted(at, steps.at[mine])
        rank = first[:, None] + np.arange(-NEIGHBOURS_EACH_SIDE, NEIGHBOURS_EACH_SIDE)
        there = (rank >= 0) & (rank < len(others))
        rank = np.clip(rank, 0, len(others) - 1)
        gap = float(np.median(np.diff(at))) if len(at) > 1 else 0.0
        away = (at[rank] - steps.at[mine, None]) / (HALF_WEIGHT_GAPS * gap or 1.0)
        places[mine] = others[rank]
        weights[mine] = there / (1 + away**2)
    return (places, weights / weights.sum(1, keepdims=True)) if len(places) else None


def _slowdowns(steps: Steps, places: Ints, weights: Floats) -> tuple[Floats, Bools]:
    """The slowdown at each step, and whether the machine was calm all around it; `[S]` both."""
    classes = _classes(steps.work)
    levels = np.ones(int(steps.work.max()) + 1)

    def level_by(adjusted: Floats) -> Floats:
        new_levels = levels.copy()
        for members in classes:
            new_levels[steps.work[members[0]]] = _midmean(adjusted[members])
        new_levels[new_levels <= 0] = 1.0  # only times of zero: no guide has them
        return new_levels

    levels = level_by(steps.seconds)
    for _ in range(MOST_ROUNDS):
        around = (steps.seconds / levels[steps.work])[places]
        slowdown = _weighted_median(around, weights)
        before, levels = levels, level_by(steps.seconds / slowdown)
        if np.abs(levels / before - 1).max() < SETTLED_BELOW:
            break
    quick = slowdown <= SLOWEST_COUNTED * np.quantile(slowdown, CALMEST_SHARE)
    even = np.where(weights > 0, around, 0).max(1) <= CALM_SLOWDOWN * slowdown
    calm = quick & even
    if even[quick].mean() < EVEN_SHARE or calm.mean() < LEAST_SHARE:
        calm = np.zeros_like(calm)
    trust = _trust(slowdown)
    usual = _weighted_median(slowdown[None], trust[None] / trust.sum())[0]
    return slowdown / usual, calm


def _trust(slowdown: Floats) -> Floats:
    """Weights of steps: slow ones tell less of what a step costs."""
    return (
        np.minimum(1, CALM_SLOWDOWN * np.quantile(slowdown, CALMEST_SHARE) / slowdown)
        ** POWER_OF_DISTRUST
    )


def _classes(work: Ints) -> list[Ints]:
    """Places of the steps of each class; none without steps."""
    if not len(work):
        return []
    order = np.argsort(work, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(work[order])) + 1)


def _midmean(values: Floats) -> float:
    quarter = len(values) // 4
    return float(np.sort(values)[quarter : len(values) - quarter].mean())


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """Of each row, between the two middle values as their weights say; weights of a row add up to 1."""
    order = np.argsort(values, axis=1)
    values = np.take_along_axis(values, order, 1)
    weights = np.take_along_axis(weights, order, 1)
    below = np.cumsum(weights, 1) - weights / 2
    if values.shape[1] == 1:
        return values[:, 0]
    rows = np.arange(len(values))
    over = np.maximum((below >= 0.5).argmax(1), 1)
    # no value above the middle: the last one with a weight holds more than half of all
    over = np.where((below >= 0.5).any(1), over, values.shape[1] - 1)
    low, high = below[rows, over - 1], below[rows, over]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(high > low, np.clip((0.5 - low) / (high - low), 0, 1), 0.5)
    return values[rows, over - 1] * (1 - part) + values[rows, over] * part


def _kept(
    steps: Steps, adjusted: Floats, calm: Bools, luck: float
) -> tuple[Bools, tuple[int, ...]]:
    """Which steps are not set aside, and the methods that have rare dear steps of their own."""
    # whether it is calm around a step does not depend on the step: no honest cost is set aside
    few = np.bincount(steps.work, calm)[steps.work] < FEWEST_STEPS_OF_A_CLASS
    kept = calm | few
    chosen = np.flatnonzero(calm & ~few)
    far = np.zeros(len(kept), bool)
    medians = np.ones(len(kept))
    for members in _classes(steps.work[chosen]):
        places = chosen[members]
        median = np.median(adjusted[places])
        off = np.abs(adjusted[places] - median)
        far[places] = off > max(FAR_IN_MADS * _MAD * np.median(off), LEAST_FAR_SHARE * median)
        medians[places] = median
    if far.sum() < FEWEST_FAR_STEPS:
        return kept, ()
    lost = np.maximum(adjusted - medians, 0)
    dear = _own_dear_steps(steps.method[chosen], medians[chosen], (lost * far)[chosen], luck)
    return (kept, dear) if dear else (kept & ~far, ())


def _own_dear_steps(method: Ints, usual: Floats, lost: Floats, luck: float) -> tuple[int, ...]:
    """Methods that lose too much by steps far from their median for these to be pauses of the machine.

    A pause hits a method with the probability of the part that its steps have in the time. What methods
    would lose so is drawn: a few long pauses make up most of it, and their sum is far from normal.
    """
    pauses = lost[lost > 0]
    loss, part = np.bincount(method, lost), np.bincount(method, usual) / usual.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        more = (loss / part - (loss.sum() - loss) / (1 - part)) / usual.sum()
    rng, dear = np.random.default_rng(0), []
    for suspect in np.flatnonzero(more > EXCESS_SHARE).tolist():
        by_chance = 0
        for _ in range(CHANCE_DRAWS // DRAWS_PER_BLOCK):
            hit = rng.random((DRAWS_PER_BLOCK, len(pauses)), np.float32) < part[suspect]
            by_chance += np.count_nonzero(hit @ pauses >= loss[suspect] * (1 - 1e-9))
        if by_chance <= luck * CHANCE_DRAWS:
            dear.append(suspect)
    return tuple(dear)
