"""Several traces ranked together: a winner is named if there is one, and its speed is not biased."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.studies.false_advice import independent
from treespec.search import LatencyModel, NotMeasured, best_tree, best_tree_among
from treespec.search.choice.ranking import SEVERAL

TIMES = LatencyModel.from_tables(
    verify={1: 0.020, 8: 0.024}, draft={1: 0.0006, 8: 0.0008}, law="iid"
)
OPTIONS = {"max_size": 4, "draws": 400}


def trace(seed, rates, texts=24):
    return independent(np.random.default_rng(seed), rates, texts, 60, 6)


@pytest.fixture(scope="module")
def equals():
    return {name: (trace(place, (0.7, 0.1)), TIMES) for place, name in enumerate("abc")}


def test_one_of_equal_sources_is_not_advised_and_loses_what_choosing_it_flatters(equals):
    ranking = best_tree_among(equals, **OPTIONS)
    alone = {name: best_tree(*given, **OPTIONS) for name, given in equals.items()}
    first, advice = ranking.best, ranking.advice
    assert (advice.use, advice.first) == (None, first)
    assert len({one.source for one in advice.between if one.kind == first.kind}) > 1
    before = {name: one.chain for name, one in alone.items()}
    assert first.kind == "chain"
    assert first.source == max(before, key=lambda name: before[name].speedup.estimate)
    flat = before[first.source].speedup
    assert 0.93 < first.speedup.estimate / flat.estimate < 0.998
    assert first.speedup.high < flat.high
    assert first.tokens_per_step.estimate < before[first.source].tokens_per_step.estimate
    for row in ranking.rows:  # nothing is taken off the others
        if (row.kind, row.basis) == ("chain", "cross-fitted") and row is not first:
            assert row.speedup.estimate == before[row.source].speedup.estimate
            rates = (alone[name].entries[0].speed.rate for name in (first.source, row.source))
            low, ratio = sorted(rates)
            assert advice.over[advice.name(row)].estimate == pytest.approx(ratio / low)
    assert SEVERAL in ranking.notes
    assert ranking.regret(first.shape) == (0.0, 0.0, 0.0)
    assert ranking.speed(first.shape, "iid") is ranking.entries[0].speed


def test_a_faster_source_is_advised_as_if_the_others_were_not_there(equals):
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


def test_the_quickest_plain_decoding_is_no_luckier_than_the_others():
    """Two profiles of the same machine."""
    given = trace(1, (0.7, 0.1))
    noise = np.exp(0.05 * np.random.default_rng(2).standard_normal((2, 2, 7)))
    times = [
        LatencyModel.from_tables(
            verify={1: list(0.02 * one[0]), 8: list(0.024 * one[1])}, draft=0.0006, law="iid"
        )
        for one in noise
    ]
    sources = {str(place): (given, one) for place, one in enumerate(times)}
    plain = best_tree_among(sources, **OPTIONS).plain
    seconds = [one.plain_s() for one in times]
    assert min(seconds) < plain.step_s.estimate < max(seconds)
    assert plain.tokens_per_step == (1.0, 1.0, 1.0)


def test_what_choosing_a_law_flatters_is_taken_off_once(make_trace, two_laws):
    laws = {
        law: make_trace(seed, texts=8, positions=80, law=law, rule=rule)
        for seed, (law, rule) in enumerate((("iid", "rrs"), ("without_replacement", "rrsw")))
    }
    one = best_tree(laws, two_laws(), branching=1, **OPTIONS)
    flattered = max(
        entry.speed.rate for entry in one.before_correction if entry.basis == "cross-fitted"
    )
    assert one.entries[0].speed.rate < flattered
    assert all(choice.kind != "chain" for choice in one.advice.others)  # of both laws they are one
    twins = best_tree_among(
        {"a": (laws, two_laws()), "b": (laws, two_laws())}, branching=1, **OPTIONS
    )
    assert twins.best.speedup.estimate == pytest.approx(one.best.speedup.estimate)
    assert one.best.kind == "chain"
    assert [SEVERAL in note for note in twins.notes].count(True) == 1


def test_chains_that_are_the_same_under_two_laws_are_one(two_laws):
    times = LatencyModel.from_json(two_laws().to_json().replace('"draw_ms": 0.2', '"draw_ms": 0.0'))
    ranking = best_tree({"iid": [0.8], "without_replacement": [0.8]}, times)
    assert {row.law for row in ranking.rows if row.kind == "chain"} == {
        "iid",
        "without_replacement",
    }
    assert ranking.advice.use is ranking.chain


def test_chains_of_two_laws_do_not_hold_each_other_up():
    """Each source has its own randomness, so more texts would not tell them apart."""
    rng, times = np.random.default_rng(0), LatencyModel.from_tables(verify=0.020, draft=0.001)
    traces = {
        law: replace(independent(rng, (0.8,), 24, 60, 10), law=law, rule=rule)
        for law, rule in (("iid", "rrs"), ("without_replacement", "rrsw"))
    }
    ranking = best_tree(traces, times, max_size=6, draws=400)
    assert ranking.advice.use is ranking.chain
