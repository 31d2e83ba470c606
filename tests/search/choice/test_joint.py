"""Several traces ranked together: a winner is named if there is one, and its speed is not biased."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.search import LatencyModel, NotMeasured, best_tree, best_tree_among

TIMES = LatencyModel.from_tables(
    verify={1: 0.020, 4: 0.0217, 8: 0.024}, draft={1: 0.0006, 8: 0.0008}, law="iid"
)
OPTIONS = {"max_size": 4, "draws": 400}


@pytest.fixture(scope="module")
def trace(independent):
    return lambda seed, rates: independent(np.random.default_rng(seed), rates, 24, 60, 6)


@pytest.fixture(scope="module")
def equals(trace):
    return {name: (trace(place, (0.7, 0.1)), TIMES) for place, name in enumerate("abc")}


def test_one_of_equal_sources_is_not_advised(equals):
    ranking = best_tree_among(equals, **OPTIONS)
    alone = {name: best_tree(*given, **OPTIONS) for name, given in equals.items()}
    first, advice = ranking.best, ranking.advice
    assert (advice.use, advice.first) == (None, first)
    assert len({one.source for one in advice.between if one.kind == first.kind}) > 1
    rates = {name: one.best.tokens_per_s.estimate for name, one in alone.items()}
    assert first.source == max(rates, key=lambda name: rates[name])
    for row in ranking.rows:
        if row.basis == "other texts" and row.kind == first.kind and row is not first:
            ratio = rates[first.source] / row.tokens_per_s.estimate
            assert advice.over[advice.name(row)].estimate == pytest.approx(ratio)


def test_a_faster_source_is_advised_as_if_the_others_were_not_there(equals, trace):
    fast = trace(7, (0.95, 0.02)), TIMES
    ranking = best_tree_among({**equals, "fast": fast}, **OPTIONS)
    assert ranking.advice.use is ranking.best
    assert ranking.best.source == "fast"
    assert all(f"times the chain of 3 ({name}, iid)" in ranking.verdict for name in equals)
    assert ranking.best.speedup == best_tree(*fast, **OPTIONS).best.speedup


def test_an_error_names_its_source(equals):
    one = LatencyModel.from_tables(verify={1: 0.02}, draft={1: 0.001}, law="iid")
    with pytest.raises(NotMeasured, match=r"^d: times are known for 1 node"):
        best_tree_among({**equals, "d": (equals["a"][0], one)}, draws=40)


def test_chains_that_are_the_same_under_two_laws_are_one(two_laws):
    times = LatencyModel.from_json(two_laws().to_json().replace('"draw_ms": 0.2', '"draw_ms": 0.0'))
    ranking = best_tree({"iid": [0.8], "without_replacement": [0.8]}, times)
    assert {row.law for row in ranking.rows if row.kind == "chain"} == {
        "iid",
        "without_replacement",
    }
    assert ranking.advice.first is ranking.chain
    assert not ranking.advice.needs


def test_chains_of_two_laws_do_not_hold_each_other_up(independent):
    """Each source has its own randomness, so more texts would not tell them apart."""
    rng, times = np.random.default_rng(0), LatencyModel.from_tables(verify=0.020, draft=0.001)
    traces = {
        law: replace(independent(rng, (0.8,), 24, 60, 10), law=law, rule=rule)
        for law, rule in (("iid", "rrs"), ("without_replacement", "rrsw"))
    }
    ranking = best_tree(traces, times, max_size=6, branching=1, draws=400)
    assert ranking.advice.use is ranking.chain
