"""The cost of a step on the machine in its usual state, read from steps of other methods close in time.

**Model.** A step takes (cost of its class) x (slowdown of the machine at that time) x (noise). Methods take
turns step by step, so a burst of other work on the machine hits all of them. The slowdown at a step is read
from the steps of *other steady* methods around it: it is the weighted median of (time / level of their
class) over the four steps before and the four after, weighted by distance in time. The level of a class is
the midmean of its adjusted times, time / slowdown; levels and slowdowns are computed alternately.

**Estimate.** The cost of a method is the sum over classes of (number of all its steps) x (mean of their
adjusted times), in which steps on a slow machine weigh less. A step counts only if the machine was *calm*
around it: not much slower than at its calmest, and even, that is, no neighbour was much slower than the
others. The time of the step itself plays no part in this, and the two neighbours right after it no part in
whether the machine was even, because a dear step leaves cold caches that slow them; so no genuine cost is
set aside. Among the remaining steps, those far from the median of their class are attributed to pauses of
the machine and set aside, if there are several and each method loses time by them in proportion to the time
it takes. If one method loses clearly more than that, they count as cost, and a remark names the method; its
dearest steps are then a class of their own, so that their number is that of all such steps, and only their
mean is estimated from those that count. If the machine changed from step to step, so that it was hardly
ever calm, all steps count, and a remark says so. If some method has no other steady method, totals decide,
and a reason says so.

**Assumptions.** Slowdowns last longer than a step and affect all methods alike; equal steps of steady
methods cost the same; all steps of a class do equal work.

**Intervals.** `Adjusted.seconds` holds one value per method and prompt. Resampled over prompts, these
values have, to first order, the variance of the estimator with tokens, class counts and weighted class
sums resampled together. On average over runs, the bounds agree with those of the joint bootstrap within
5 % of the width of the interval at 12 and 24 prompts (`tests/experiments/report/test_slowdown.py`).

**Simulation** by `python -m treespec.experiments.studies.interleaved_estimator`: the first two of several
methods are compared over 12 prompts of 48 tokens; steps take 4 to 20 ms. On made-up machines bursts slow
steps 1.6 to 3 times for 0.7 s of 2 s, drift reaches 30 %, stalls stop the machine for some 50 ms every 2 s,
and steady contention slows it 1.2 to 3.2 times, drawn anew every 4 ms. *Several classes*: the work of a
step varies; *rare dear steps*: one step in 50 costs five times as much; they *chill caches* if they also
slow the two steps after them by half; *caches grow*: steps at the end of a text cost 30 % more than at its
beginning; *feels 0.8 of it*: the method feels a slowdown f as f ^ 0.8. All in percent: the standard
deviation of the ratio of costs by prompts, by totals of steps in turns, by `studies.nearest_steps`, the
scheme that this file began with (*nearest*), and by the estimate of this file (*adjusted*); for the latter
also the bias, the median half-width and the coverage of the 95 % interval.

    methods                       machine  prompts  totals  nearest  adjusted    bias  half-width  coverage
    A/A                           quiet       0.35    0.19     0.19      0.19   -0.00        0.50      98.3
                                  bursts     13.74    1.07     1.04      0.24   +0.01        0.59      97.8
                                  drift       0.48    0.19     0.20      0.20   -0.00        0.50      98.0
                                  stalls      4.08    4.00     3.58      2.03   -0.07        0.54      96.4
                                  steady      3.44    1.19     1.30      1.23   +0.03        3.19      97.1
    5 % dearer                    quiet       0.35    0.19     0.20      0.20   +0.01        0.49      97.5
                                  bursts     13.95    1.03     1.00      0.25   +0.00        0.58      96.8
    several classes               quiet       0.34    0.20     0.22      0.21   +0.01       11.16      94.8
                                  bursts     13.49    2.26     2.22      0.27   -0.01       11.02      93.4
    rare dear steps               quiet       0.36    0.20     1.14      0.28   -0.02        6.79      94.6
                                  bursts     14.19    1.67     1.76      1.72   -0.48        7.45      94.3
                                  drift       0.53    0.32     1.33      0.23   -0.01        6.78      94.8
                                  stalls      4.11    4.07     4.07      4.94   -1.65        7.41      54.3
                                  steady      3.32    1.25     2.00      1.52   -0.09        7.56      89.9
    rare dear steps chill caches  quiet       1.03    0.40     2.81      0.49   -0.15        6.74      93.7
                                  bursts     13.97    1.68     2.20      1.86   -0.70        7.22      92.4
    caches grow                   quiet       0.35    0.19     0.22      0.21   -0.10        0.94      96.7
                                  bursts     14.06    1.06     1.04      0.77   -0.08        2.07      97.3
    A/A, no other method          bursts     13.22    0.88     0.69      0.40   -0.01        0.94      97.0
    feels 0.8 of it               bursts     11.91    0.90     1.43      0.24   +0.18        0.59      93.6
                                  drift       0.44    0.19     0.20      0.19   -2.44        1.24       0.0
                                  steady      2.72    0.98     1.08      1.02  -12.66        2.68       0.0
    1,000 runs per row, measured 2026-11-27, commit 635b54b:
    interleaved_estimator-amd-epyc-2-cores.json

The same with slowdowns that `benchmarks.slowdown_traces` recorded on the machine that the file is named
after, alone and beside its neighbours (stalls are added to the record of the quiet machine):

    methods                       machine  prompts  totals  nearest  adjusted    bias  half-width  coverage
    A/A                           quiet       1.40    0.74     0.74      0.69   +0.00        1.29      92.8
                                  bursts     16.46    3.92     3.92      0.73   -0.03        1.17      92.4
                                  drift       2.95    1.00     1.02      1.50   +0.12        3.43      96.0
                                  stalls      3.76    3.26     3.25      1.78   -0.03        1.26      89.4
                                  steady      5.38    2.74     2.74      4.21   +0.06        6.47      85.9
    5 % dearer                    quiet       1.30    0.72     0.72      0.67   +0.07        1.27      93.6
                                  bursts     15.95    4.02     4.01      0.72   +0.01        1.19      92.4
    several classes               quiet       1.27    0.75     0.76      0.82   +0.38       11.23      95.0
                                  bursts     15.06    4.97     4.94      0.92   +0.60       11.24      95.4
    rare dear steps               quiet       1.36    0.76     0.93      1.89   -0.46        7.59      84.8
                                  bursts     15.26    4.32     4.34      4.83   -1.40        9.26      55.3
                                  drift       3.20    1.06     1.44      3.93   -1.22        9.26      72.7
                                  stalls      3.74    3.21     3.25      4.33   -1.68        7.77      53.8
                                  steady      5.57    2.85     2.88      4.42   -1.04        9.00      79.7
    rare dear steps chill caches  quiet       1.70    0.83     0.97      1.66   -0.33        7.44      89.8
                                  bursts     15.38    4.23     4.25      4.83   -1.06        9.26      56.7
    caches grow                   quiet       1.30    0.72     0.72      0.92   +0.22        1.99      93.2
                                  bursts     15.80    3.90     3.90      1.75   +0.75        3.04      84.7
    A/A, no other method          bursts     16.93    3.63     3.11      1.21   -0.06        1.60      85.1
    feels 0.8 of it               bursts     12.63    3.24     3.27      0.82   -0.56        1.21      80.5
                                  drift       2.69    1.18     1.20      1.47   -6.77        3.23       5.0
                                  steady      3.86    2.02     2.02      3.10  -16.73        5.08       0.2
    1,000 runs per row, measured 2026-11-27, commit 635b54b:
    interleaved_estimator_recorded-amd-epyc-2-cores.json

**Failure cases.** Rare dear steps during bursts: the estimate is no more certain than totals, and on a
restless machine its interval is far too narrow. Contention that changes within a step, on all cores
(*steady*): the intervals are wider than those of totals, and too narrow still if the method has rare dear
steps of its own. By contrast, if bursts occur on a machine that is restless even without them, totals are
far more uncertain than these times (`test_on_a_restless_machine_all_steps_count`). A method that a slowdown
affects less than others, in a run without long quiet parts: the estimate is biased like totals (*feels 0.8
of it*). Rare dear steps on a machine that also stops now and then: if they are too few to be told from its
pauses, they are set aside, and the method appears cheaper than it is, with intervals that are too narrow. A
growing cache during bursts: intervals may be slightly too narrow. Fewer than four far steps in total count
as cost, so a pause of the machine may remain in a short run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from treespec.experiments.report.far_steps import dear_apart, kept_steps
from treespec.experiments.report.timed_steps import (
    FEWEST_STEPS_OF_A_CLASS,
    Bools,
    Floats,
    Ints,
    Steps,
    classes,
    totals,
)

__all__ = [
    "Adjusted",
    "adjust",
    "by_prompt",
    "midmean",
    "of_prompts",
]

NEIGHBOURS_EACH_SIDE = 4
"""Steps of other steady methods on each side of a step from which its slowdown is read."""

HALF_WEIGHT_GAPS = 2.0
"""Distance at which the weight of a neighbour falls to one half, in median gaps between steps."""

MOST_ROUNDS, SETTLED_BELOW = 6, 1e-4
"""Maximum number of rounds of levels and slowdowns, and relative change of levels that ends them."""

CALMEST_SHARE, CALM_SLOWDOWN = 0.2, 1.2
"""Share of steps that defines the calmest state, and factor up to which a slowdown is calm. Steps up to
this factor slower than the calmest fifth weigh alike, slower steps less. The machine was even around a
step if no neighbour, but for the `STEPS_IN_THE_WAKE`, was slower than the slowdown there by more than this
factor."""

STEPS_IN_THE_WAKE = 2
"""Neighbours right after a step that say nothing about evenness: a step that takes several times as long as
others leaves cold caches, which slow the steps after it, and would otherwise be set aside for that."""

POWER_OF_DISTRUST = 3
"""Exponent with which the weight of slow steps falls with the slowdown."""

SLOWEST_COUNTED = 1.4
"""Steps on a machine slower than in the calmest fifth by more than this factor are set aside."""

EVEN_SHARE, LEAST_SHARE = 0.5, 0.1
"""All steps count unless the machine was even around at least `EVEN_SHARE` of the steps at which it was not
slow, and at least `LEAST_SHARE` of all steps were calm."""

LIKELIEST_CHANCE, LIKELIEST_CHANCE_IF_RESTLESS = 0.03, 0.005
"""Largest probability that counts as hardly ever. Suspecting a method wrongly makes intervals wider,
missing one makes them wrong, so little evidence suffices; more is required if all steps count, including
those on a slow machine."""

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


@dataclass(frozen=True, eq=False)
class Adjusted:
    """Decoding times for the machine in its usual state; see the docstring of the module.

    Args:
        slowdown: `[S]`, slowdown of the machine at each step relative to its usual state, 1 for most of a
            quiet run; all ones if totals decide.
        kept: `[S]`, whether the step counts, that is, was not set aside.
        work: `[S]`, class of the step as in `Steps`, but numbered anew, with dear steps of methods in
            `dear` apart.
        weight: `[S]`, weight of the step within its class.
        seconds: `[M, P]`, adjusted decoding time by method and prompt. Its sum over prompts is the sum over
            classes of (number of all steps) x (weighted mean of the class). They are meant for resampling:
            where the machine was slow for most of a run, that of a single prompt may be negative.
        of_prompts: `[M, P]`, adjusted decoding time of each prompt by its own steps, never negative.
        stages: `[M, P]` each, the parts of `seconds` spent in each stage.
        reason: why `seconds` are the plain totals, as a sentence; None if they are adjusted.
        restless: whether the machine changed from step to step, so that all steps count.
        dear: numbers of the methods with rare dear steps of their own, because of which all steps far from
            the median of their class count as cost.
    """

    slowdown: Floats
    kept: Bools
    work: Ints
    weight: Floats
    seconds: Floats
    of_prompts: Floats
    stages: dict[str, Floats] = field(default_factory=dict)
    reason: str | None = None
    restless: bool = False
    dear: tuple[int, ...] = ()

    def remark(self, names: Sequence[str]) -> str | None:
        """Remarks on the estimate, as sentences; None if there are none.

        Args:
            names: names of the methods, by number.
        """
        *initial, last = [names[number] for number in self.dear] or [""]
        methods = f"{', '.join(initial)} and {last}" if initial else last
        remarks = [RESTLESS] * self.restless + [DEAR_STEPS.format(methods=methods)] * bool(
            self.dear
        )
        return " ".join(remarks) or None


def adjust(steps: Steps, stages: Mapping[str, Floats] | None = None) -> Adjusted:
    """Remove the slowdown of the machine from decoding times.

    Args:
        steps: steps of all methods.
        stages: `[S]` each, seconds of each step spent in a stage.

    Returns:
        The adjusted times; if they cannot be adjusted, the totals with the reason.
    """
    stages = dict(stages or {})
    around = _around(steps)
    if around is None:
        ones = np.ones(len(steps.seconds))
        return Adjusted(
            slowdown=ones,
            kept=ones > 0,
            work=steps.work,
            weight=ones,
            seconds=totals(steps, steps.seconds),
            of_prompts=totals(steps, steps.seconds),
            stages={name: totals(steps, spent) for name, spent in stages.items()},
            reason=NO_NEIGHBOURS,
        )
    slowdown, calm = _slowdowns(steps, *around)
    restless = not calm.any()
    adjusted, weight = steps.seconds / slowdown, _trust(slowdown)
    luck = LIKELIEST_CHANCE_IF_RESTLESS if restless else LIKELIEST_CHANCE
    kept, dear = kept_steps(steps, adjusted, calm | restless, luck)
    steps = dear_apart(steps, adjusted, kept, dear)
    return Adjusted(
        slowdown=slowdown,
        kept=kept,
        work=steps.work,
        weight=weight,
        seconds=by_prompt(steps, adjusted, weight * kept),
        of_prompts=of_prompts(steps, adjusted, weight * kept),
        stages={
            name: by_prompt(steps, spent / slowdown, weight * kept)
            for name, spent in stages.items()
        },
        restless=restless,
        dear=dear,
    )


def by_prompt(steps: Steps, adjusted: Floats, weight: Floats) -> Floats:
    """Steps at the mean of their class, plus the influence of the prompt on these means; `[M, P]`.

    For prompt p and class c, let n_pc count all steps, W_pc sum the weights of the steps that count, and
    S_pc sum their weighted times. The estimator C = sum_c N_c S_c / W_c, with N, S and W the totals over
    prompts, has the differential sum_c (m_c dN_c + (N_c / W_c) (dS_c - m_c dW_c)), m_c = S_c / W_c.
    Resampling the prompts therefore changes C, to first order, like the sum over prompts of

        sum_c [n_pc m_c + (N_c / W_c) (S_pc - m_c W_pc)]

    The second terms sum to zero, so the sum over all prompts is C itself. S is linear in the times, and
    so is the whole expression: the values of the stages sum to that of the step.

    Args:
        steps: steps of all methods.
        adjusted: `[S]`, times whose means are taken.
        weight: `[S]`, weight of the step within its class; 0 sets it aside.
    """
    counts = np.bincount(steps.work)
    weights = np.bincount(steps.work, weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (np.bincount(steps.work, weight * adjusted) / weights)[steps.work]
        share = (counts / weights)[steps.work]
    return totals(steps, means + share * weight * (adjusted - means))


def of_prompts(steps: Steps, adjusted: Floats, weight: Floats) -> Floats:
    """Steps of a prompt at the mean of those steps of their class that are the prompt's own; `[M, P]`.

    Where none of them counts, the mean of the whole class takes its place. Unlike `by_prompt`, which is for
    intervals, this is the time of one prompt; its sum over prompts is only nearly the estimate.

    Args:
        steps: steps of all methods.
        adjusted: `[S]`, times whose means are taken.
        weight: `[S]`, weight of the step within its class; 0 sets it aside.
    """
    _, cell = np.unique(np.stack([steps.work, steps.prompt]), axis=1, return_inverse=True)

    def mean_of(group: Ints) -> Floats:
        with np.errstate(invalid="ignore"):
            return (np.bincount(group, weight * adjusted) / np.bincount(group, weight))[group]

    own = mean_of(cell.ravel())
    return totals(steps, np.where(np.isnan(own), mean_of(steps.work), own))


def _around(steps: Steps) -> tuple[Ints, Floats] | None:
    """Find the neighbours of each step among the steps of other steady methods.

    Returns:
        Indices `[S, 2K]` of the neighbours, and weights `[S, 2K]` that sum to 1; None if some method has no
        neighbours.
    """
    large_class = np.bincount(steps.work, minlength=1) >= FEWEST_STEPS_OF_A_CLASS
    usable = steps.steady[steps.method] & large_class[steps.work] & (steps.seconds > 0)
    guides = np.flatnonzero(usable)
    guides = guides[np.argsort(steps.at[guides], kind="stable")]
    indices = np.zeros((len(steps.at), 2 * NEIGHBOURS_EACH_SIDE), np.int64)
    weights = np.zeros(indices.shape)
    for method in np.unique(steps.method):
        of_method = np.flatnonzero(steps.method == method)
        candidates = guides[steps.method[guides] != method]
        if not len(candidates):
            return None
        times = steps.at[candidates]
        insertion = np.searchsorted(times, steps.at[of_method])
        rank = insertion[:, None] + np.arange(-NEIGHBOURS_EACH_SIDE, NEIGHBOURS_EACH_SIDE)
        exists = (rank >= 0) & (rank < len(candidates))
        rank = np.clip(rank, 0, len(candidates) - 1)
        gap = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        distance = (times[rank] - steps.at[of_method, None]) / (HALF_WEIGHT_GAPS * gap or 1.0)
        indices[of_method] = candidates[rank]
        weights[of_method] = exists / (1 + distance**2)
    return (indices, weights / weights.sum(1, keepdims=True)) if len(indices) else None


def _slowdowns(steps: Steps, places: Ints, weights: Floats) -> tuple[Floats, Bools]:
    """The slowdown at each step, and whether the machine was calm around it; `[S]` each."""
    members_of_classes = classes(steps.work)
    levels = np.ones(int(steps.work.max()) + 1)

    def level_by(adjusted: Floats) -> Floats:
        new_levels = levels.copy()
        for members in members_of_classes:
            new_levels[steps.work[members[0]]] = midmean(adjusted[members])
        new_levels[new_levels <= 0] = 1.0  # only classes with times of zero, which no neighbour has
        return new_levels

    levels = level_by(steps.seconds)
    for _ in range(MOST_ROUNDS):
        relative = (steps.seconds / levels[steps.work])[places]
        slowdown = _weighted_median(relative, weights)
        previous, levels = levels, level_by(steps.seconds / slowdown)
        if np.abs(levels / previous - 1).max() < SETTLED_BELOW:
            break
    fast = slowdown <= SLOWEST_COUNTED * np.quantile(slowdown, CALMEST_SHARE)
    uneven = (weights > 0) & (relative > CALM_SLOWDOWN * slowdown[:, None])
    uneven[:, NEIGHBOURS_EACH_SIDE : NEIGHBOURS_EACH_SIDE + STEPS_IN_THE_WAKE] = False
    even = np.logical_not(np.any(uneven, axis=1))
    calm = fast & even
    if even[fast].mean() < EVEN_SHARE or calm.mean() < LEAST_SHARE:
        calm = np.zeros_like(calm)
    trust = _trust(slowdown)
    usual = _weighted_median(slowdown[None], trust[None] / trust.sum())[0]
    return slowdown / usual, calm


def _trust(slowdown: Floats) -> Floats:
    """Weights of steps; those on a slow machine say less about the cost of a step."""
    return (
        np.minimum(1, CALM_SLOWDOWN * np.quantile(slowdown, CALMEST_SHARE) / slowdown)
        ** POWER_OF_DISTRUST
    )


def midmean(values: Floats) -> float:
    """The mean of the middle half."""
    quarter = len(values) // 4
    return float(np.sort(values)[quarter : len(values) - quarter].mean())


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
