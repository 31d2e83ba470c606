"""Small runs of the study of advice."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer

from treespec.experiments.benchmarks import results_file
from treespec.experiments.studies import advice_unseen, false_advice
from treespec.experiments.studies import search_advice as module
from treespec.experiments.studies.advice_sections import advice
from treespec.experiments.studies.advice_time import measured_process
from treespec.search import LatencyModel, expected_tokens
from treespec.search.rates.replay import replay
from treespec.shape import TreeShape
from treespec.testing import plane_trees


@pytest.fixture
def kept_in(tmp_path, monkeypatch):
    """The folder that results are written to."""
    monkeypatch.setattr(module, "path_of", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(results_file, "path_of", lambda name: tmp_path / f"{name}.json")
    return tmp_path


def drawn_without_replacement():
    trace = module.stretches(np.random.default_rng(0), 24, 60)
    return replace(trace, law="without_replacement", rule="rrsw")


def times_by_law(**level_ms):
    """Times of two laws with different draft times."""
    laws = {law: {"level_ms": level, "sampling": "T=1"} for law, level in level_ms.items()}
    batch = {"verify_ms": {"1": 20, "64": 40}, "laws": laws}
    return LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))


def texts_of(part, figures):
    return "\n".join(advice({"figures": {part: figures}})[part])


def test_halves_are_all_texts_once():
    trace = module.stretches(np.random.default_rng(0), 7, 20)
    left, right = map(trace.part, advice_unseen.halves(trace, np.random.default_rng(1)))
    assert (left.texts, right.texts) == (3, 4)
    all_texts = sorted(map(tuple, np.split(trace.ranks, trace.offsets[1:-1])))
    split_texts = [
        text for half in (left, right) for text in np.split(half.ranks, half.offsets[1:-1])
    ]
    assert sorted(map(tuple, split_texts)) == all_texts


def test_excerpts_of_a_file_are_in_the_same_half():
    files = np.tile(np.arange(6), 3)
    trace = replace(module.stretches(np.random.default_rng(0), 18, 20), files=files)
    left, right = advice_unseen.halves(trace, np.random.default_rng(1))
    assert len(left) == len(right) == 9
    assert not {*files[left]} & {*files[right]}


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


def test_many_splits_are_replays_of_both_halves():
    trace = module.stretches(np.random.default_rng(0), 24, 40)
    trace = replace(trace, files=np.tile(np.arange(12), 2))
    shapes = {name: advice_unseen.OTHERS[name] for name in ("chain 3", "2-ary 2")}
    found = advice_unseen.many_splits(trace, shapes, 40)
    rng, agreed, inside = np.random.default_rng(1), [], []
    values = {name: [] for name in shapes}
    for _ in range(40):
        order = rng.permutation(12)
        left, right = (
            trace.part(np.flatnonzero(np.isin(trace.file_of, half)))
            for half in (order[:6], order[6:])
        )
        for name, shape in shapes.items():
            predicted, replayed = (replay(part, shape).interval() for part in (left, right))
            values[name].append((predicted.estimate, replayed.estimate))
            widths = (predicted.high - predicted.low) / 2, (replayed.high - replayed.low) / 2
            agreed.append(
                abs(predicted.estimate - replayed.estimate) <= sum(w**2 for w in widths) ** 0.5
            )
            inside.append(predicted.low <= replayed.estimate <= predicted.high)
    for name, pairs in values.items():
        over, under = np.array(pairs).mean(axis=0)
        assert found["quotients"][name]["quotient"] == pytest.approx(over / under)
    assert found["agreed"] == pytest.approx(np.mean(agreed))
    assert found["inside"] == pytest.approx(np.mean(inside))
    assert 0.6 < found["inside"] < found["agreed"] < 1
    by_shape = {name: np.mean(agreed[i::2]) for i, name in enumerate(shapes)}
    assert found["least agreed"] == [
        pytest.approx(min(by_shape.values())),
        min(by_shape, key=by_shape.get),
    ]


def test_a_quotient_of_means_has_the_error_of_its_pairs():
    rng = np.random.default_rng(0)
    under = rng.uniform(1, 2, 400)
    over = 1.1 * under + rng.normal(0, 0.2, 400)
    found = advice_unseen.quotient(over, under)
    assert found["quotient"] == pytest.approx(over.mean() / under.mean())
    picks = rng.integers(400, size=(4000, 400))
    drawn = over[picks].mean(axis=1) / under[picks].mean(axis=1)
    assert found["error"] == pytest.approx(drawn.std(), rel=0.05)


def test_chains_have_the_law_and_the_times_that_a_run_draws_them_by():
    trace = drawn_without_replacement()
    times = times_by_law(without_replacement=8, iid=1)
    chain, tree = TreeShape.chain(4), TreeShape.kary(2, 2)
    laws = [
        advice_unseen.law_of(shape, trace, times) for shape in (chain, tree, TreeShape.chain(0))
    ]
    assert laws == ["iid", "without_replacement", "without_replacement"]
    rates = advice_unseen.by_rates(trace, times)
    assert (rates.chain.law, rates.tree.law) == ("iid", "without_replacement")
    quick, slow = (advice_unseen.speed_on(trace, chain, law, times) for law in laws[:2])
    assert quick / slow == pytest.approx(
        times.step_s(chain, law=laws[1]) / times.step_s(chain, law=laws[0])
    )
    alone = times_by_law(without_replacement=8)
    assert advice_unseen.law_of(chain, trace, alone) == "without_replacement"
    assert advice_unseen.by_rates(trace, alone).chain.law == "without_replacement"


def test_traces_need_times_of_their_law(tmp_path):
    trace = drawn_without_replacement().save(tmp_path / "trace.npz")
    times = times_by_law(iid=1).save(tmp_path / "times.json")
    with pytest.raises(typer.BadParameter, match="--latency"):
        module.main([trace], only=["unseen"])
    with pytest.raises(typer.BadParameter, match=r"law = 'without_replacement'.*known for iid"):
        module.main([trace], times, only=["unseen"])
    with pytest.raises(typer.BadParameter, match="need traces"):
        module.main(latency=times, only=["live"])
    times = times_by_law(without_replacement=8).save(tmp_path / "times.json")
    with pytest.raises(typer.BadParameter, match="are both called"):
        module.main([trace, trace], times, only=["unseen"])


@pytest.mark.slow
def test_predictions_hold_on_unseen_texts_and_rates_do_not(kept_in):
    trace = module.stretches(np.random.default_rng(2), 60, 120)
    files = trace.save(kept_in / "trace.npz"), module.UNIT.save(kept_in / "times.json")
    module.main([files[0]], files[1], only=["unseen"], splits=3, many=200)
    figures = json.loads((kept_in / "search_advice.json").read_text())["figures"]["traces"]
    (found,) = figures.values()
    assert found["times"]["file"] == "times.json"
    assert len(found["times"]["sha256"]) == 64
    assert found["advised"]["both ways"]["quotient"] == pytest.approx(1, abs=0.06)
    assert found["advised"]["agreed"] > 0.8
    assert found["others"]["agreed"] > 0.9
    worst = found["others"]["quotients"][found["others"]["worst"]]
    assert abs(worst["quotient"] - 1) < 4 * worst["error"]
    assert found["own replay"]["others"] < 1e-9 < found["own replay"]["chosen"] < 0.05
    assert found["choice"]["of best there"] > 0.93
    assert abs(found["choice"]["pooled"]["log"]) < 1
    old = advice_unseen.by_rates(trace, module.UNIT).best
    value = replay(trace, old.shape).tokens_per_step
    assert old.tokens_per_step.estimate > 1.3 * value
    page = texts_of("traces", figures)
    assert f"| {worst['quotient']:.3f} ± {worst['error']:.3f} |" in page
    assert "`times.json`" in page


def test_one_of_two_equals_is_rarely_advised():
    found = false_advice.two_equals(25)
    assert found["share"] <= 0.12
    assert found["searches"] == 25
    assert f"Of 25 searches among equally fast shapes, {found['share']:.1%}".replace(
        "%", " %"
    ) in texts_of("equals", found)


def test_the_best_of_every_size_is_as_fast_as_plain_decoding():
    rng = np.random.default_rng(0)
    times, speeds = false_advice.measured(rng, 6, 0.0, 0.0), {}
    assert times.round_count == 6
    for size in range(2, false_advice.LARGEST_SIZE + 1):
        trees = list(plane_trees(size)) if size < 8 else []
        trees = [t for t in trees if max(map(len, t.children)) <= 3]
        if trees:
            speeds[size] = max(
                (expected_tokens(t, false_advice.RATES) / times.step_s(t), t.is_chain)
                for t in trees
            )
    assert {round(speed, 6) for speed, _ in speeds.values()} == {1.0}
    assert {chain for _, chain in speeds.values()} == {True, False}
    drifted = false_advice.measured(rng, 6, 0.3, 0.0).law_times().verify.curves[None]
    assert np.std(np.log(drifted.samples[4])) == pytest.approx(np.std(np.log(drifted.samples[9])))


def test_nothing_is_advised_where_all_are_equal():
    found = false_advice.many_equals(4, positions=60)
    assert sum(found["told"].values()) <= 1
    assert set(found["flattered"]) == {"tree", "chain"}
    said = f"{100 * found['share']:.1f} % with times from 9 rounds"
    assert said in texts_of("noisy", {str(found["rounds"]): found})


def test_no_draft_is_advised_where_several_are_as_fast():
    found = false_advice.equal_sources(8, 3, rates=(0.8, 0.1, 0.05), branching=1, draws=400)
    assert sum(found["told"].values()) <= 1
    assert set(found["flattered"]) == {"chain"}
    assert abs(found["flattered"]["chain"]) < 0.05
    assert f"{100 * found['share']:.1f} % of 8 searches among 3 drafts" in texts_of(
        "sources", {"3": found}
    )


def test_parts_are_kept_beside_each_other(kept_in):
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
    row = found["over rates"]["16"]
    counted = f"| {row['median']:.3f} | {row['worst']:.3f} | {int(row['worst'] < 1)} of 1 |"
    assert f"| 16 | the choice by rates {counted}" in texts_of("exhaustive", found)


def test_a_process_is_measured_by_its_own_memory():
    held = bytearray(300 << 20)
    small, large = (
        measured_process(sys.executable, "-c", f"held = bytes(bytearray({size} << 20))")
        for size in (1, 100)
    )
    assert small["gigabytes"] < 0.1 < large["gigabytes"] < 0.3 < len(held) / 2**30 + 0.1
    assert large["seconds"] > 0
    with pytest.raises(subprocess.CalledProcessError):
        measured_process(sys.executable, "-c", "raise SystemExit(2)")
