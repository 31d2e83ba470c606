"""Methods of different groups are compared through a copy of the same method in each group."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.report.common_reference import through_copies
from treespec.experiments.report.slowdown import adjust
from treespec.experiments.report.statistics import paired_bootstrap
from treespec.experiments.report.timed_steps import Steps
from treespec.experiments.studies.interleaved_estimator import MACHINES, Method, World, simulate

PLAIN, CHAIN = Method("plain", 8e-3, 0), Method("chain", 14e-3, 4)
GROUPS = (
    World("first", (PLAIN, PLAIN, CHAIN)),
    World("second", (PLAIN, CHAIN, Method("tree", 20e-3, 5, bonus=0.08))),
)
REFERENCE, COPY, CHAINS = 0, 3, (2, 4)


def two_groups(slower, seed=0, prompts=12):
    """Steps of both groups, one after the other per prompt, on a machine slower in the second group."""
    runs = [
        simulate(world, MACHINES["quiet"], np.random.default_rng([seed, number]), prompts)
        for number, world in enumerate(GROUPS)
    ]
    columns = ("method", "prompt", "work", "at", "seconds")
    first, second = ({c: getattr(run.steps, c) for c in columns} for run in runs)
    second["method"] = second["method"] + len(GROUPS[0].methods)
    second["work"] = second["work"] + first["work"].max() + 1
    second["seconds"] = second["seconds"] * slower
    joined = {c: np.concatenate([first[c], second[c]]) for c in columns}
    group = np.repeat([0, 1], [len(first["at"]), len(second["at"])])
    order = np.lexsort((joined["at"], group, joined["prompt"]))
    joined = {c: values[order] for c, values in joined.items()}
    joined["at"] = np.cumsum(joined["seconds"]) - joined["seconds"] / 2
    steps = Steps(**joined, steady=np.ones(6, bool), prompts=prompts)
    return steps, np.concatenate([run.true for run in runs])


def ratio(seconds, true):
    """The cost of the chain in the second group over that in the first, divided by the true ratio."""
    first, second = CHAINS
    return paired_bootstrap(true[first], seconds[first], true[second], seconds[second])


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_a_machine_that_is_slower_in_one_group_changes_no_ratio(slower):
    links = dict.fromkeys((4, 5), (REFERENCE, COPY))
    estimates = []
    for seed in range(4):
        steps, true = two_groups(slower, seed)
        adjusted = adjust(steps)
        assert ratio(adjusted.seconds, true).estimate == pytest.approx(slower, rel=0.02)
        linked = through_copies(adjusted, links)
        across = ratio(linked.seconds, true)
        assert across.estimate == pytest.approx(1, abs=0.01)
        assert across.low < 1 < across.high
        estimates.append(across.estimate)
        assert (linked.seconds[:4] == adjusted.seconds[:4]).all()
        # within a group nothing changes: both methods were slowed down alike
        within = [paired_bootstrap(*a.seconds[[4, 4, 5, 5]]) for a in (adjusted, linked)]
        assert within[0] == within[1]
    assert np.mean(estimates) == pytest.approx(1, abs=5e-3)


def test_the_interval_holds_what_the_copies_differ_by():
    """A copy that is slowed down on some prompts is a less reliable reference for its group."""
    steps, true = two_groups(1.0)
    adjusted = adjust(steps)
    seconds = adjusted.seconds.copy()
    seconds[COPY, ::3] *= 1.3
    doubtful = replace(
        adjusted, seconds=seconds, stages={"verify": seconds / 2, "rest": seconds / 2}
    )
    linked = through_copies(doubtful, {4: (REFERENCE, COPY)})
    wide, narrow = ratio(linked.seconds, true), ratio(adjusted.seconds, true)
    expected = seconds[4].sum() * seconds[REFERENCE].sum() / seconds[COPY].sum()
    assert linked.seconds[4].sum() == pytest.approx(expected)
    scale = seconds[REFERENCE].sum() / seconds[COPY].sum()
    assert linked.of_prompts[4] == pytest.approx(adjusted.of_prompts[4] * scale)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert linked.stages["verify"] + linked.stages["rest"] == pytest.approx(linked.seconds)
