"""What methods of different groups cost, compared through the reference that ran in every group.

Where memory does not hold all methods at once, they take turns in groups, one group after the other. If the
machine is slower whenever one of them runs, its own steps do not tell: slowdowns are read against what they
mostly take. But every group holds the reference, or a copy of it that does the same work with the same
coins. So a method b in a group whose copy is t costs, beside those in the group of the reference r,

    C_b C_r / C_t

where C adds up adjusted times over all prompts.

**Intervals.** With s the adjusted time of one prompt, the sum over prompts of

    (C_r / C_t) [s_b + C_b (s_r / C_r - s_t / C_t)]

is this cost, and a resampling of prompts changes both alike to first order: the interval of a ratio across
groups holds what the two copies differ by from prompt to prompt, that of a ratio within a group does not,
since the second part is the same share of both methods.

**Simulated** (`tests/experiments/report/test_common_reference.py`; 100 runs of 12 prompts, two groups, the
same chain in both): ratio of its costs across groups over the truth, its standard deviation, the median
half-width and the coverage of the 95 % interval, in percent:

                                        ratio     sd    half-width   coverage
    a quiet machine     as adjusted      99.9    0.4           0.5         67
                        through copies  100.0    0.2           0.8         99
    20 % slower in the  as adjusted     119.9    0.5           0.5          0
    second group        through copies  100.0    0.2           0.8         99
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.slowdown import Adjusted

__all__ = ["APART", "THROUGH", "copies_of", "through_copies"]

THROUGH = (
    "Methods took turns in {groups} groups, one after the other; those of different groups are compared "
    "through {reference}, which ran in each."
)
APART = (
    "Caution: methods took turns in {groups} groups, one after the other, and not every one held a copy of "
    "the same method that decoded all prompts: what slowed the machine down may have met one group more "
    "than another."
)


def copies_of(
    run: RunRecords, methods: Sequence[str], twins: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Through which copies methods of different groups are compared.

    Args:
        run: with its groups.
        methods: that are compared.
        twins: that decoded all that is compared.

    Returns:
        For each method of another group than the reference's: the reference, and its copy in the method's
        group. And a sentence on how groups are compared; None where there is one only.
    """
    groups = {name: run.group_of(name) for name in methods}
    count = len(set(groups.values()))
    if count < 2:
        return {}, None
    of = {twin: run.twins[twin] for twin in twins if run.twins[twin] in groups}
    copies = {run.group_of(twin): (name, twin) for twin, name in of.items()}
    home = {groups[name] for name in of.values()}
    copy_of = {name: copies[n] for name, n in groups.items() if n in copies and n not in home}
    apart = any(number not in home and number not in copies for number in groups.values())
    sentence = APART if apart else THROUGH
    return copy_of, sentence.format(groups=count, reference=next(iter(of.values()), None))


def through_copies(adjusted: Adjusted, copies: Mapping[int, tuple[int, int]]) -> Adjusted:
    """The same, with the times of some methods read through copies of a reference.

    Args:
        adjusted: times of all methods.
        copies: by the number of a method, the numbers of the reference and of its copy in the method's
            group.
    """
    totals = adjusted.seconds.sum(1)
    seconds = adjusted.seconds.copy()
    stages = {stage: values.copy() for stage, values in adjusted.stages.items()}
    for method, (reference, copy) in copies.items():
        if min(totals[reference], totals[copy]) <= 0:
            continue
        change = adjusted.seconds[reference] / totals[reference]
        change = change - adjusted.seconds[copy] / totals[copy]
        for values in (seconds, *stages.values()):
            values[method] += values[method].sum() * change
            values[method] *= totals[reference] / totals[copy]
    return replace(adjusted, seconds=seconds, stages=stages)
