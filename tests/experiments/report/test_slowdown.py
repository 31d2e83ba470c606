"""The cost of steps in turns, on machines made up for the test."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec.experiments.report import slowdown
from treespec.experiments.report.slowdown import NO_NEIGHBOURS, RESTLESS, Steps, adjust, by_prompt
from treespec.experiments.report.statistics import paired_ratio

COSTS = np.array([6.0, 6.0, 2.0, 8.0, 4.0]) * 1e-3
"""Seconds of a step of five methods, of which the first two are identical."""


def quiet(at):
    return np.ones_like(at)


def bursts(at):
    """Two to three times slower for 0.7 s of 2 s."""
    return np.where((at + 0.3) % 2 < 0.7, 2.5, 1.0)


def drift(at):
    return 1 + 0.3 * at / 20


def run(seed=0, machine=quiet, prompts=12, steps=20, dearer=1.0):
    """Methods take turns in a new order in each round; steps have noise of 2 %."""
    coins = np.random.default_rng(seed)
    method = np.concatenate([coins.permutation(len(COSTS)) for _ in range(prompts * steps)])
    prompt = np.repeat(np.arange(prompts), steps * len(COSTS))
    cost = np.where(method == 0, dearer, 1) * COSTS[method]
    cost = cost * np.exp(coins.normal(0, 0.02, len(cost)))
    at, now = np.zeros(len(cost)), coins.uniform(0, 2)
    for i, base in enumerate(cost):
        took = base * machine(np.array(now))
        at[i], cost[i], now = now + took / 2, took, now + took
    return Steps(method, prompt, method, at, cost, np.ones(len(COSTS), bool), prompts)


def ratio(steps, values=None):
    """The cost of the first method over that of the second, with its interval."""
    seconds = adjust(steps).seconds if values is None else steps.totals(values)
    ones = np.ones(steps.prompts)
    return paired_ratio(ones, seconds[1], ones, seconds[0])


@st.composite
def made_up(draw):
    count = draw(st.integers(1, 120))
    coins = np.random.default_rng(draw(st.integers(0, 2**32)))
    methods, prompts = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    method = coins.integers(0, methods, count)
    seconds = np.exp(coins.normal(0, draw(st.sampled_from([0.0, 0.1, 2.0])), count))
    if draw(st.booleans()):
        seconds *= coins.random(count) > 0.3
    return Steps(
        method=method,
        prompt=coins.integers(0, prompts, count),
        work=method * 3 + coins.integers(0, draw(st.integers(1, 3)), count),
        at=coins.random(count) if draw(st.booleans()) else np.zeros(count),
        seconds=seconds,
        steady=coins.random(methods) < 0.8,
        prompts=prompts,
    )


@given(made_up())
def test_stages_add_up_and_no_cost_is_made_up(steps):
    parts = np.random.default_rng(1).dirichlet([1, 1, 1], len(steps.seconds)).T * steps.seconds
    names = ("draft", "verify", "rest")
    found = adjust(steps, dict(zip(names, parts, strict=True)))
    assert np.isfinite(found.seconds).all()
    assert found.seconds == pytest.approx(sum(found.stages.values()), abs=1e-9)
    assert (found.of_prompts >= 0).all()
    if found.reason:
        assert found.seconds == pytest.approx(steps.totals(steps.seconds))


def test_prompts_add_up_to_all_steps_at_the_weighted_means_of_their_classes():
    steps = run(machine=bursts)
    weight = np.random.default_rng(0).random(len(steps.seconds))
    found = by_prompt(steps, steps.seconds, weight).sum(1)
    for method in range(len(COSTS)):
        own = steps.work == method
        mean = np.average(steps.seconds[own], weights=weight[own])
        assert found[method] == pytest.approx(own.sum() * mean)


@pytest.mark.parametrize("machine", [quiet, bursts, drift])
def test_the_order_of_steps_and_the_unit_of_time_do_not_matter(machine):
    steps = run(machine=machine)
    order = np.random.default_rng(1).permutation(len(steps.at))
    columns = ("method", "prompt", "work", "at", "seconds")
    mixed = replace(steps, **{name: getattr(steps, name)[order] for name in columns})
    mixed = replace(mixed, at=4 * mixed.at, seconds=4 * mixed.seconds)
    assert adjust(mixed).seconds == pytest.approx(4 * adjust(steps).seconds)


@pytest.mark.parametrize("machine", [quiet, bursts, drift])
@pytest.mark.parametrize("dearer", [1.0, 1.05])
def test_intervals_hold_the_truth_and_a_burst_biases_nothing(machine, dearer):
    found = [ratio(run(seed, machine, dearer=dearer)) for seed in range(12)]
    assert np.mean([r.estimate for r in found]) == pytest.approx(dearer, abs=3e-3)
    assert sum(r.contains(dearer) for r in found) >= 9
    assert sum(r.contains(1.0) for r in found) == (0 if dearer > 1 else pytest.approx(12, abs=3))


def test_beside_bursts_intervals_are_narrower_than_those_of_totals():
    steps = [run(seed, bursts) for seed in range(6)]
    adjusted = np.median([ratio(each).half_width for each in steps])
    assert adjusted < np.median([ratio(each, each.seconds).half_width for each in steps]) / 2


@pytest.mark.parametrize("machine", [quiet, bursts, drift])
def test_a_method_keeps_its_rare_expensive_steps(machine):
    """One step in 20 of the first method takes five times as long: it costs 1.2 times as much."""
    found = []
    for seed in range(4):
        steps = run(seed, machine, prompts=24)
        rare = np.flatnonzero(steps.method == 0)[::20]
        seconds = steps.seconds.copy()
        seconds[rare] *= 5
        adjusted = adjust(replace(steps, seconds=seconds))
        assert adjusted.own == (0,)
        assert "rare steps of tree are far" in adjusted.remark(["tree", "b", "c", "d", "e"])
        found.append(adjusted.seconds[0].sum() / adjusted.seconds[1].sum())
    assert np.mean(found) == pytest.approx(1.2, rel=0.03)


def test_few_pauses_of_the_machine_are_not_held_against_the_method_they_met():
    steps = run()
    met = np.random.default_rng(0).choice(len(steps.seconds), 8, replace=False)
    seconds = steps.seconds.copy()
    seconds[met] += 0.1
    paused = adjust(replace(steps, seconds=seconds))
    assert (paused.own, paused.restless) == ((), False)
    assert paused.seconds.sum(1) == pytest.approx(adjust(steps).seconds.sum(1), rel=0.01)


def test_on_a_restless_machine_all_steps_count_and_a_remark_says_so():
    steps = run()
    noise = np.exp(np.random.default_rng(0).normal(0, 0.8, len(steps.seconds)))
    found = adjust(replace(steps, seconds=steps.seconds * noise))
    assert found.restless
    assert found.remark(["a", "b", "c", "d", "e"]).startswith(RESTLESS)


def test_totals_decide_without_another_steady_method():
    steps = run()
    alone = adjust(replace(steps, steady=np.array([True, False, False, False, False])))
    assert alone.reason == NO_NEIGHBOURS
    assert np.array_equal(alone.seconds, steps.totals(steps.seconds))


def test_the_table_of_the_docstring_is_that_of_the_file():
    path = Path(__file__).with_name("kept_rounds.json")
    rows = [r for r in json.loads(path.read_text())["figures"]["rows"] if r["seeds"] == "all"]
    shown = [line for line in slowdown.__doc__.splitlines() if line.startswith("    ")][1:]
    for line, row in zip(shown, rows, strict=True):
        expected = (
            f"{row['way']} {row['told_apart']} / 20 {row['half_width']:.2f} % {row['sd']:.2f} "
            f"{row['found_slower']} / 20 {row['bias_of_dearer']:+.2f} %"
        )
        assert " ".join(line.split()).endswith(expected)
