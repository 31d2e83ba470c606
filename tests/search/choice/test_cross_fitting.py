"""The speed of the choice, on texts left out of it, corrected for the bias of noisy times."""

import json

import numpy as np
import pytest

from treespec import TreeShape
from treespec.experiments.studies.false_advice import RATES, independent, measured
from treespec.experiments.studies.search_advice import stretches
from treespec.search import LatencyModel
from treespec.search.choice import cross_fitting
from treespec.search.choice.law_speed import Times
from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.proposals import proposed, rates_at
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.rates.replay import step_starts

CHEAP = LatencyModel.from_tables(verify={1: 0.020, 32: 0.026}, draft={1: 0.0006, 16: 0.0008})


def side_of(trace, latency=CHEAP):
    return TraceSpeed("iid", trace, Times(latency, None, 1, 100, 0, np.random.default_rng(0)))


def test_cross_fitting_is_choosing_on_four_fifths_and_valuing_on_the_last():
    trace = stretches(np.random.default_rng(6), texts=10, positions=60)
    side, bounds = side_of(trace), Bounds(12, 11, 3)
    pool = cross_fitting.choose(side, bounds, "chain", np.ones(10, dtype=bool))
    found = cross_fitting.cross_fitted(side, bounds, "chain", pool)
    chains = [TreeShape.chain(deep) for deep in range(1, 12)]
    (some, often), (emitted, steps) = side.sampled_totals(chains), side.totals(chains)
    seconds = np.array([CHEAP.step_s(chain) for chain in chains])
    tokens, time = 0.0, 0.0
    for part in range(5):
        here = side.parts(5) == part
        assert here.sum() == 2
        chosen = int(np.argmax(some[:, ~here].sum(1) / often[:, ~here].sum(1) / seconds))
        tokens += emitted[chosen, here].sum()
        time += steps[chosen, here].sum() * seconds[chosen]
    assert found.rate == pytest.approx(tokens / time)
    assert found.seconds == pytest.approx(CHEAP.step_s(next(iter(pool))))


def test_trees_are_proposed_anew_for_where_the_steps_of_the_best_begin(monkeypatch):
    """Steps skip easy stretches and begin at hard positions, for which other trees are best."""
    monkeypatch.setattr(cross_fitting, "climb", lambda *_: None)  # local moves may find them, too
    side, texts = side_of(stretches(np.random.default_rng(0), 12, 60)), np.ones(12, dtype=bool)
    bounds = Bounds(24, 15, 3, frozenset({24}))
    found = cross_fitting.choose(side, bounds, "tree", texts)

    def proposals(starts):
        return proposed(rates_at(side.sample, starts, texts, bounds), bounds)

    best, at_first = next(iter(found)), proposals(np.flatnonzero(side.sample.inside))
    assert set(at_first) < set(found)
    assert best not in at_first
    assert best in proposals(step_starts(side.sample, best))  # it stays
    assert set(proposals(step_starts(side.sample, best))) <= set(found)
    unseen = side_of(stretches(np.random.default_rng(9), 60, 200))
    before = next(shape for shape in found if shape in at_first)
    assert unseen.speed(best).rate > 1.005 * unseen.speed(before).rate


def timed_in_rounds(rng, rounds, noise=0.3):
    """Times of chains of up to 8 nodes, each size measured once in each round."""

    def measured(milliseconds):
        return [[milliseconds * np.exp(noise * rng.standard_normal())] for _ in range(rounds)]

    verify = {str(size): measured(20 + size) for size in range(1, 9)}
    law = {"level_ms": {"1": measured(1.0), "8": measured(1.5)}}
    batch = {"verify_ms": verify, "laws": {"iid": law}}
    return LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))


def test_all_rounds_choose_and_what_the_choice_flatters_is_taken_off():
    trace = stretches(np.random.default_rng(6), texts=10, positions=60)
    latency = timed_in_rounds(np.random.default_rng(1), rounds=8)
    side, bounds = side_of(trace, latency), Bounds(8, 7, 1)
    pool = cross_fitting.choose(side, bounds, "chain", np.ones(10, dtype=bool))
    found = cross_fitting.cross_fitted(side, bounds, "chain", pool)
    chains = [TreeShape.chain(deep) for deep in range(1, 8)]
    seconds = np.array([latency.step_s(chain) for chain in chains])
    (some, often), (emitted, steps) = side.sampled_totals(chains), side.totals(chains)
    drawn = np.stack([side.speed(chain).seconds_drawn for chain in chains])
    cost = seconds * often.sum(1) / some.sum(1)
    redrawn = cost[:, None] * drawn / drawn.mean(axis=1, keepdims=True)
    best = redrawn.argmin(axis=0)
    longer = cost[best].mean() / redrawn.min(axis=0).mean()
    tokens, time = 0.0, 0.0
    for part in range(5):
        here = side.parts(5) == part
        chosen = int(np.argmax(some[:, ~here].sum(1) / often[:, ~here].sum(1) / seconds))
        tokens += emitted[chosen, here].sum()
        time += steps[chosen, here].sum() * seconds[chosen]
    assert longer > 1.01
    assert found.rate == pytest.approx(tokens / time / longer)
    assert found.seconds == pytest.approx(latency.step_s(next(iter(pool))) * longer)


def test_few_rounds_of_measuring_do_not_decide_between_trees_and_chains():
    kept = {"tree": [], "chain": []}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        trace = independent(rng, RATES, texts=24, positions=60, beyond=10)
        side = side_of(trace, measured(rng, rounds=5, drift=0.03, noise=0.1))
        for kind, value in kept.items():
            pool = cross_fitting.choose(side, Bounds(10, 9, 3), kind, np.ones(24, dtype=bool))
            fitted = cross_fitting.cross_fitted(side, Bounds(10, 9, 3), kind, pool)
            value.append(fitted.rate / side.speed(next(iter(pool))).rate)
    assert np.mean(kept["chain"]) == pytest.approx(np.mean(kept["tree"]), abs=0.01)
    assert 0.95 < np.mean(kept["tree"]) < 1
    assert max(np.std(kept["tree"]), np.std(kept["chain"])) < 0.025
