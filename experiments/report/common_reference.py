"""Costs of methods in different groups, compared through a reference that ran in every group.

If memory cannot hold all methods at once, they take turns in groups, one group after another. A slowdown
that lasts as long as a group is invisible in its own steps, because slowdowns are measured relative to what
those steps mostly take. But every group contains the reference, or a copy of it that does the same work
with the same coins. The cost of a method b in a group with copy t, on the scale of the group of the
reference r, is therefore

    C_b C_r / C_t

where C sums adjusted times over all prompts.

**Intervals.** With s the adjusted time of one prompt, the sum over prompts of

    (C_r / C_t) [s_b + C_b (s_r / C_r - s_t / C_t)]

equals this cost, and resampling the prompts changes both alike to first order. The interval of a ratio
across groups thus includes the differences between the two copies from prompt to prompt; the interval of a
ratio within a group does not, because the second term is the same share of both methods.

**Simulation** (`tests/experiments/report/test_common_reference.py`): the same chain in two groups. If the
machine is 20 % slower in the second group, the chain costs 20 % more there as adjusted. Through copies its
costs agree, and the interval of their ratio contains 1; so it does on a quiet machine.
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
    "Caution: methods took turns in {groups} groups, one after the other, and not every group had a copy "
    "of the same method that decoded all prompts: a slowdown of the machine may have hit one group more "
    "than another."
)


def copies_of(
    run: RunRecords, methods: Sequence[str], twins: Sequence[str]
) -> tuple[dict[str, tuple[str, str]], str | None]:
    """Find the copies through which methods of different groups are compared.

    Args:
        run: the run, with its groups.
        methods: compared methods.
        twins: twins that decoded every compared prompt.

    Returns:
        For each method outside the group of the reference: the reference, and its copy in the group of the
        method. And a sentence on how groups are compared; None if there is a single group.
    """
    groups = {name: run.group_of(name) for name in methods}
    count = len(set(groups.values()))
    if count < 2:
        return {}, None
    copied = {twin: run.twins[twin] for twin in twins if run.twins[twin] in groups}
    copies = {run.group_of(twin): (name, twin) for twin, name in copied.items()}
    reference_groups = {groups[name] for name in copied.values()}
    copy_of = {
        name: copies[n] for name, n in groups.items() if n in copies and n not in reference_groups
    }
    unlinked = any(
        number not in reference_groups and number not in copies for number in groups.values()
    )
    sentence = APART if unlinked else THROUGH
    return copy_of, sentence.format(groups=count, reference=next(iter(copied.values()), None))


def through_copies(adjusted: Adjusted, copies: Mapping[int, tuple[int, int]]) -> Adjusted:
    """Rescale the times of methods in other groups through the copies of a reference.

    Args:
        adjusted: times of all methods.
        copies: for each method number, the numbers of the reference and of its copy in the group of the
            method.
    """
    totals = adjusted.seconds.sum(1)
    seconds, of_prompts = adjusted.seconds.copy(), adjusted.of_prompts.copy()
    stages = {stage: values.copy() for stage, values in adjusted.stages.items()}
    for method, (reference, copy) in copies.items():
        if min(totals[reference], totals[copy]) <= 0:
            continue
        change = (
            adjusted.seconds[reference] / totals[reference] - adjusted.seconds[copy] / totals[copy]
        )
        for values in (seconds, *stages.values()):
            values[method] += values[method].sum() * change
            values[method] *= totals[reference] / totals[copy]
        of_prompts[method] *= totals[reference] / totals[copy]
    return replace(adjusted, seconds=seconds, of_prompts=of_prompts, stages=stages)
