"""Smoothed replay: it counts fully with many texts, and little with few."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.studies.search_advice import stretches
from treespec.search import LatencyModel, expected_tokens
from treespec.search.choice.law_speed import Times
from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.proposals import chains, grid, proposed, rates_at
from treespec.search.choice.smoothing import Smoothed
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.optimum.optimal import optimal_tree
from treespec.shape import TreeShape
from treespec.testing import plane_trees

TIMES = LatencyModel.from_tables(verify={1: 0.02, 64: 0.03}, draft=0.001)
BOUNDS = Bounds(16, 6, 3)


def side_of(texts, seed=0, stay=0.9):
    """As at temperature 0, where there is nothing to draw again."""
    trace = stretches(np.random.default_rng(seed), texts, 100, stay)
    trace = replace(trace, accepted=(trace.ranks[:, None] == np.arange(3)) * 1.0)
    return of_trace(trace)


def of_trace(trace):
    return TraceSpeed("iid", trace, Times(TIMES, None, 1, 40, 0, np.random.default_rng(0)))


def smoothed(side):
    every = np.ones(side.texts, dtype=bool)
    rates = rates_at(side.sample, np.flatnonzero(side.sample.inside), every, BOUNDS)
    trees = proposed(rates, BOUNDS)
    emitted, steps = (part.sum(axis=1) for part in side.sampled_totals(trees))
    return Smoothed(side, every, rates, trees), trees, emitted / steps


def test_with_many_texts_it_is_the_replay():
    found, trees, replayed = smoothed(side_of(500))
    np.testing.assert_allclose(found.tokens(trees), replayed, rtol=0.01)


def test_with_few_texts_the_best_by_it_is_better_than_the_best_by_replay(make_trace):
    """Acceptance is independent here, so rates by rank give the values of trees."""
    rates = (0.4, 0.15, 0.1, 0.08)
    trees = [tree for size in range(8, 9) for tree in plane_trees(size) if fits(tree)]
    truth = np.array([expected_tokens(tree, rates) for tree in trees])
    gains = []
    for seed in range(24):
        drawn = make_trace(seed, texts=4, positions=40, rates=rates, spread=0.0)
        onehot = (drawn.ranks[:, None] == np.arange(4)) * 1.0
        side = of_trace(replace(drawn, accepted=onehot))
        found, _, _ = smoothed(side)
        emitted, steps = (part.sum(axis=1) for part in side.totals(trees))
        seconds = side.seconds(trees)
        worth = truth / seconds
        first = worth[np.argmax(found.tokens(trees) / seconds)]
        gains.append(first / worth[np.argmax(emitted / steps / seconds)] - 1)
    assert np.mean(gains) > 0.005


def fits(tree):
    return BOUNDS.allow(tree) and tree.depth <= 6 and max(map(len, tree.children)) <= 3


@pytest.mark.parametrize("number", [1, 4, 11])
def test_of_few_trees_the_regression_explains_all_so_replay_is_believed(number):
    side = side_of(6)
    every = np.ones(6, dtype=bool)
    rates = rates_at(side.sample, np.flatnonzero(side.sample.inside), every, BOUNDS)
    trees = proposed(rates, BOUNDS)
    found = Smoothed(side, every, rates, trees[:number])
    emitted, steps = (part.sum(axis=1) for part in side.sampled_totals(trees))
    np.testing.assert_allclose(found.tokens(trees), emitted / steps)


def test_what_a_regression_leaves_is_counted_over_its_degrees_of_freedom():
    """With twelve trees, four features explain a third of the noise."""
    side = side_of(40, seed=3)
    every = np.ones(40, dtype=bool)
    rates = rates_at(side.sample, np.flatnonzero(side.sample.inside), every, BOUNDS)
    trees = proposed(rates, BOUNDS)[:12]
    found = Smoothed(side, every, rates, trees)
    logs, shifts = found._replayed(trees)
    residuals, noise = found._residuals(found._features(trees), logs, shifts)
    wanted = max(0.0, (residuals**2).sum() / 8 - noise.mean())
    assert found._signal == pytest.approx(wanted)


def test_a_single_text_shows_no_chance_so_nothing_of_it_is_believed():
    side = side_of(4)
    one = np.arange(4) == 0
    rates = rates_at(side.sample, np.flatnonzero(side.sample.inside), one, BOUNDS)
    trees = proposed(rates, BOUNDS)
    found = Smoothed(side, one, rates, trees)
    assert np.isfinite(found.tokens(trees)).all()
    emitted, steps = (part[:, one].sum(axis=1) for part in side.sampled_totals(trees))
    assert np.abs(np.log(found.tokens(trees) / (emitted / steps))).max() > 0.005


def test_proposals_are_the_best_trees_under_the_rates():
    side = side_of(50)
    every = np.ones(50, dtype=bool)
    rates = rates_at(side.sample, np.flatnonzero(side.sample.inside), every, BOUNDS)
    assert rates.shape == (6, 3)
    assert (np.diff(rates, axis=1) <= 0).all()
    found = proposed(rates, BOUNDS)
    assert len(set(found)) == len(found)
    assert all(BOUNDS.allow(tree) and tree.depth <= 6 for tree in found)
    for size in (10, 14):
        best = expected_tokens(optimal_tree(rates, size), rates)
        assert max(expected_tokens(t, rates) for t in found if t.size == size) == pytest.approx(
            best
        )
    only = Bounds(16, 6, 3, frozenset([7]))
    assert {tree.size for tree in proposed(rates, only)} == {7}
    assert chains(only) == [TreeShape.chain(6)]
    assert chains(BOUNDS) == [TreeShape.chain(deep) for deep in range(1, 7)]
    assert grid(3) == [1, 2, 3]
    assert grid(64)[-1] == 64


def test_levels_that_no_step_reaches_have_the_rates_of_all():
    side = side_of(5, stay=0.2)
    every = np.ones(5, dtype=bool)
    starts = np.array([0])
    rates = rates_at(side.sample, starts, every, BOUNDS)
    assert np.isfinite(rates).all()
    assert (rates[-1] == rates[-2]).all()
    assert rates[-1, 0] > 0


def test_excerpts_of_a_file_are_believed_as_one_text():
    """Copies of texts add no information."""
    trace, places = side_of(8).trace, np.tile(np.arange(8), 3)
    once, copied = (of_trace(one) for one in (trace, replace(trace.part(places), files=places)))
    starts = np.flatnonzero(trace.inside)
    rates = rates_at(trace, starts, np.ones(8, dtype=bool), BOUNDS)
    trees = proposed(rates, BOUNDS)
    few, many = (
        Smoothed(side, np.ones(side.trace.texts, dtype=bool), rates, trees).tokens(trees)
        for side in (once, copied)
    )
    np.testing.assert_allclose(few, many, rtol=1e-9)
    assert smoothed(of_trace(trace.part(places)))[0].tokens(trees) != pytest.approx(few, rel=1e-4)
