"""The simple scheme that the slowdown estimator began with."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.report.timed_steps import Steps, totals
from treespec.experiments.studies.interleaved_estimator import MACHINES, WORLDS, simulate
from treespec.experiments.studies.nearest_steps import nearest_steps

WORLD = {world.name: world for world in WORLDS}


def test_a_machine_that_only_changes_speed_is_seen_through():
    count, costs = 400, np.array([1.0, 2.5, 0.4])
    method = np.arange(count) % 3
    at = np.cumsum(costs[method])
    slowdown = 1 + 0.15 * np.sin(at / 60)
    seconds = costs[method] * slowdown
    steps = Steps(method, np.arange(count) // 40, method, at, seconds, np.ones(3, bool))
    cost = nearest_steps(steps).sum(1) / np.bincount(method)
    assert cost / cost[0] == pytest.approx(costs, rel=5e-3)


def test_bursts_meet_twins_alike():
    run = simulate(WORLD["A/A"], MACHINES["bursts"], np.random.default_rng(0), 12)
    seconds = nearest_steps(run.steps).sum(1)
    assert seconds[0] / seconds[1] == pytest.approx(1, abs=0.02)
    assert seconds[0] / run.true[0].sum() == pytest.approx(seconds[1] / run.true[1].sum(), rel=0.02)


def test_totals_decide_where_no_other_method_is_steady():
    steps = simulate(WORLD["A/A"], MACHINES["quiet"], np.random.default_rng(0), 3).steps
    alone = replace(steps, steady=np.arange(len(steps.steady)) == 0)
    assert np.array_equal(nearest_steps(alone), totals(alone, alone.seconds))


def test_totals_decide_where_one_method_loses_steps():
    steps = simulate(WORLD["A/A"], MACHINES["quiet"], np.random.default_rng(0), 12).steps
    seconds = steps.seconds.copy()
    mine = np.flatnonzero(steps.method == 1)
    seconds[mine[::20]] *= 5
    uneven = replace(steps, seconds=seconds)
    assert np.array_equal(nearest_steps(uneven), totals(uneven, uneven.seconds))
    assert not np.array_equal(nearest_steps(steps), totals(steps, steps.seconds))
