"""Small versions of the study of advice."""

import json
from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.benchmarks import results_file
from treespec.experiments.studies import advice_unseen, false_advice
from treespec.experiments.studies import search_advice as module
from treespec.search import expected_tokens, replay
from treespec.testing import plane_trees


def test_halves_are_all_texts_once():
    trace = module.stretches(np.random.default_rng(0), 7, 20)
    one, other = map(trace.part, advice_unseen.halves(trace, np.random.default_rng(1)))
    assert (one.texts, other.texts) == (3, 4)
    whole = sorted(map(tuple, np.split(trace.ranks, trace.offsets[1:-1])))
    both = [text for half in (one, other) for text in np.split(half.ranks, half.offsets[1:-1])]
    assert sorted(map(tuple, both)) == whole


def test_excerpts_of_a_file_are_in_the_same_half():
    files = np.tile(np.arange(6), 3)
    trace = replace(module.stretches(np.random.default_rng(0), 18, 20), files=files)
    one, other = advice_unseen.halves(trace, np.random.default_rng(1))
    assert len(one) == len(other) == 9
    assert not {*files[one]} & {*files[other]}


def test_stretches_are_easy_and_hard_for_as_long_as_asked():
    trace = module.stretches(np.random.default_rng(0), 200, 200, stay=0.9)
    hard = (trace.accepted[:, 0] == module.HARD[0]).reshape(200, -1)
    assert hard.mean() == pytest.approx(0.5, abs=0.03)
    assert (hard[:, 1:] != hard[:, :-1]).mean() == pytest.approx(0.1, abs=0.01)
    first = (trace.ranks == 0).reshape(200, -1)
    assert first[hard].mean() == pytest.approx(module.HARD[0], abs=0.02)
    assert first[~hard].mean() == pytest.approx(module.EASY[0], abs=0.02)


def test_a_pooled_choice_is_that_of_all_texts_with_its_error():
    rng = np.random.default_rng(0)
    spent = rng.uniform(1, 2, (2, 2, 40))
    found = advice_unseen._pooled(spent, np.arange(40))
    sums = spent.sum(axis=2)
    assert found["log"] == pytest.approx(np.log(sums[0, 0] / sums[0, 1] * sums[1, 1] / sums[1, 0]))
    draws = rng.integers(40, size=(4000, 40))
    sums = spent[:, :, draws].sum(axis=3)
    logs = np.log(sums[0, 0] / sums[0, 1] * sums[1, 1] / sums[1, 0])
    assert found["error"] == pytest.approx(np.std(logs), rel=0.1)
    halves = advice_unseen._pooled(np.repeat(spent, 2, axis=2) / 2, np.repeat(np.arange(40), 2))
    assert halves == pytest.approx(found)  # excerpts of a file count as one text


@pytest.mark.slow
def test_predictions_hold_on_unseen_texts_and_rates_do_not():
    trace = module.stretches(np.random.default_rng(2), 60, 120)
    found = advice_unseen.unseen(trace, module.UNIT, 3)
    assert found["quotients"]["advised"] == pytest.approx(1, abs=0.06)
    assert found["choice"]["of best there"] > 0.93
    assert found["agreed"] > 0.9
    assert found["quotients"]["chain 8"] == pytest.approx(1, abs=1e-9)  # halves cancel, both ways
    one_way = found["one way"]
    off = abs(one_way["quotients"]["chain 8"] - 1)
    assert 1e-4 < off < 5 * one_way["chance"]["chain 8"]
    assert abs(found["choice"]["pooled"]["log"]) < 1
    old = advice_unseen.by_rates(trace, module.UNIT).best
    value = replay.replay(trace, old.shape).tokens_per_step
    assert old.tokens_per_step.estimate > 1.3 * value


def test_one_of_two_equals_is_rarely_advised():
    found = false_advice.two_equals(25)
    assert found["share"] <= 0.12
    assert found["searches"] == 25


def test_the_best_of_every_size_is_as_fast_as_plain_decoding():
    rng = np.random.default_rng(0)
    times, speeds = false_advice.measured(rng, 6, 0.0, 0.0), {}
    assert times.round_count == 6
    for size in range(2, false_advice.LARGEST + 1):
        trees = list(plane_trees(size)) if size < 8 else []
        trees = [t for t in trees if max(map(len, t.children)) <= 3]
        if trees:
            speeds[size] = max(
                (expected_tokens(t, false_advice.RATES) / times.step_s(t), t.is_chain)
                for t in trees
            )
    assert {round(speed, 6) for speed, _ in speeds.values()} == {1.0}
    assert {chain for _, chain in speeds.values()} == {True, False}
    drifted = false_advice.measured(rng, 6, 0.3, 0.0).times().verify.curves[None]
    assert np.std(np.log(drifted.samples[4])) == pytest.approx(np.std(np.log(drifted.samples[9])))


def test_nothing_is_advised_where_all_are_equal():
    found = false_advice.many_equals(4, positions=60)
    assert sum(found["told"].values()) <= 1
    assert set(found["flattered"]) == {"tree", "chain"}


def test_parts_are_kept_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "path_of", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(results_file, "path_of", lambda name: tmp_path / f"{name}.json")
    module.kept("time", {"seconds": 1})
    module.kept("unseen", {"a": 1})
    module.kept("unseen", {"b": 2})
    runs = json.loads(module.kept("runs", {"c": 3}).read_text())["figures"]
    path = module.kept("time", {"gigabytes": 2})
    figures = json.loads(path.read_text())["figures"]
    assert figures["traces"] == {"a": 1, "b": 2}
    assert figures["time"] == {"gigabytes": 2}
    assert set(figures["parts"]) == {"time", "unseen"}
    assert (runs["runs"], set(runs["parts"])) == ({"c": 3}, {"runs"})


def test_the_best_of_all_small_trees_is_found():
    found = module.exhaustive(1, 40, nodes=(16,))
    assert found["of the best"]["worst"] > 0.995
    assert found["over rates"]["16"]["worst"] > 0.99
