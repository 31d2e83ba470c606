"""Measure, search, run and compare: one run of a tiny pair, and its possible errors."""

import json
import shutil
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from rendered import section_html

from treespec.experiments.config.schema import Config, SearchConfig
from treespec.experiments.measure.fastest import search_fastest
from treespec.experiments.measure.resolve import STATIC, _Resolver, resolve
from treespec.experiments.measure.searched_run import run
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured, load_measured
from treespec.experiments.report.page import print_run, write_report
from treespec.experiments.report.prediction import (
    MISSING,
    first_ranked,
    median_errors,
    prediction_finding,
    predictions,
)
from treespec.experiments.report.run import load_run
from treespec.files import write_whole
from treespec.search import LatencyModel, Trace, estimate_acceptance, optimal_tree
from treespec.tree import TreeShape


@pytest.fixture(scope="module")
def whole(searching, loaded_pair, tmp_path_factory):
    """A run from its measurements to its records. Read only."""
    path = tmp_path_factory.mktemp("searched") / "run"
    config = Config.model_validate(searching)
    result = run(config, folder=path, load=lambda models: loaded_pair)
    assert not result.failures, result.failures[0].error
    return result.folder


def test_everything_asked_for_was_measured_and_run(whole):
    kept = {path.name for path in (whole / "search").iterdir()}
    assert {
        "trace-0-deterministic.npz",
        "trace-1-without_replacement.npz",
        "trace-1-deterministic.npz",
        "latency.json",
        "calibration-0.json",
        "calibration-1.json",
        "best-0.json",
        "best-1.json",
    } <= kept
    names = [method.name for method in load_run(whole).methods]
    assert names[:3] == ["plain", "chain 2", "2-ary 2"]
    assert names[3:5] == ["optimal 5 for T=0", "optimal 5 for T=1"]
    assert [name.partition(":")[0] for name in names[5:7]] == ["best for T=0", "best for T=1"]
    assert names[7:] == [
        "cost-aware 6",
        "EAGLE-2 2x2, 5, calibrated for T=0",
        "EAGLE-2 2x2, 5, calibrated for T=1",
    ]


def test_the_optimal_tree_is_that_of_the_recorded_rates(whole, searching):
    trace = Trace.load(whole / "search" / "trace-0-deterministic.npz")
    assert trace.text_kept.tolist() == [12] * 4
    rates = estimate_acceptance(trace, by="depth", depth=3, ranks=2, shrinkage=20)
    found = {method.name: method.parents for method in load_run(whole).methods}
    assert found["optimal 5 for T=0"] == optimal_tree(rates, 5, depth=3).parents


def test_a_search_of_the_same_files_says_the_same(whole, tmp_path):
    """`treespec search` on a trace and times, and the search before a run, which chooses no growth."""
    folder = whole / "search"
    prefix = json.loads((folder / "config.json").read_text())["prefix"]
    for trace, file in (
        ("0-deterministic", "best-0.json"),
        ("1-without_replacement", "best-1.json"),
    ):
        ((_, told),) = json.loads((folder / file).read_text()).items()
        limits = {"max_size": 6, "depth": 3, "branching": 2}
        whole_trace = Trace.load(folder / f"trace-{trace}.npz")
        recorded = replace(whole_trace, draft_rows=None)
        left_out = [] if whole_trace.draft_rows is None else [STATIC]
        sources, times = [str(recorded.save(tmp_path / f"{trace}.npz"))], [folder / "latency.json"]
        found = search_fastest(sources, times, "medusa", prefixes=(prefix,), **limits).data()
        assert (told["verdict"], told["rows"][0]) == (found["verdict"], found["rows"][0])
        assert told["notes"] == found["notes"] + left_out
    assert {row["law"] for row in found["rows"] if row["kind"] == "chain"} == {"iid"}


def test_a_tree_chosen_by_what_another_rule_accepts_is_told(whole, searching, tmp_path):
    best = searching["methods"][4]
    methods = [{"kind": "plain"}, best | {"rule": "traversal"}, best | {"rule": "chain"}, best]
    config = Config.model_validate(searching | {"methods": methods})
    resolver = _Resolver(config, load_measured(config, whole / "search"), tmp_path, write_whole)
    (tree, chain) = TreeShape.kary(2, 2), TreeShape.chain(2)
    told = {
        (method.rule, sampling, shape): resolver._cautions(method, sampling, shape)
        for method in config.methods[1:]
        for sampling in ("T=0", "T=1")
        for shape in (tree, chain)
    }
    (said,) = told["traversal", "T=1", tree]
    assert "by what rule rrsw accepts, but rule traversal" in said
    silent = {key for key, notes in told.items() if not notes}
    assert {("traversal", "T=0", tree), ("chain", "T=1", chain), (None, "T=1", tree)} <= silent


def test_dynamic_methods_are_recorded_without_a_fixed_tree(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    grown = {m["name"]: m for m in manifest["methods"]}["cost-aware 6"]
    assert grown["parents"] is None
    assert (grown["size"], grown["depth"], grown["growth"]["kind"]) == (6, 3, "cost_aware")
    assert grown["rule"] == {"T=0": "greedy", "T=1": "onehot"}
    run_ = load_run(whole)
    steps = run_.steps.filter(run_.steps["method"] == "cost-aware 6")
    assert steps["size"].max() <= 6
    assert steps["depth"].max() <= 3


def test_greedy_texts_equal_those_of_plain_decoding(whole):
    greedy = load_run(whole).prompts.filter(load_run(whole).prompts["sampling"] == "T=0")
    texts = {}
    for row in greedy.iter_rows(named=True):
        texts.setdefault(row["prompt"], set()).add(tuple(row["tokens"]))
    assert [len(found) for found in texts.values()] == [1, 1]


def test_predictions_are_beside_measurements(whole, capsys):
    from rich.console import Console

    run_ = load_run(whole)
    rows = run_.predictions
    names = {(row.sampling, row.method) for row in rows}
    assert ("T=0", "chain 2") in names
    assert ("T=1", "optimal 5 for T=0") in names
    assert {("T=0", "cost-aware 6"), ("T=1", "EAGLE-2 2x2, 5, calibrated for T=0")} <= names
    plain = next(row for row in rows if (row.sampling, row.method) == ("T=0", "plain"))
    assert plain.tokens.estimate == plain.tokens_measured.estimate == 1
    row = next(r for r in rows if (r.sampling, r.method) == ("T=0", "chain 2"))
    latency = LatencyModel.load(whole / "search" / "latency.json")
    step_s = latency.step_s(TreeShape.chain(2), law="deterministic")
    cheaper = latency.plain_s(law="deterministic") / step_s
    assert row.speed == pytest.approx(row.tokens.estimate / step_s)
    assert row.speedup.estimate == pytest.approx(row.tokens.estimate * cheaper)
    assert row.speedup.high == pytest.approx(row.tokens.high * cheaper)
    prompts = run_.prompts.filter(run_.prompts["sampling"] == "T=0")
    mine, plains = (prompts.filter(prompts["method"] == name) for name in ("chain 2", "plain"))
    assert row.tokens_measured.estimate == pytest.approx(
        mine["emitted"].sum() / mine["steps"].sum()
    )
    data = run_.measurements["T=0"]
    costs = [data.total(name, "decode_s") for name in ("plain", "chain 2")]
    assert row.speedup_measured.estimate == pytest.approx(
        mine["emitted"].sum() / plains["emitted"].sum() * costs[0] / costs[1]
    )
    assert plain.speedup.estimate == plain.speedup_measured.estimate == 1
    assert row.speedup_error == pytest.approx(
        row.speedup.estimate / row.speedup_measured.estimate - 1
    )
    trees = [row for row in rows if row.size > 1]  # without growths that never draft
    assert median_errors(rows) == median_errors(trees)
    assert median_errors(rows)[1] == pytest.approx(median(abs(r.speedup_error) for r in trees))
    fastest = first_ranked(trees)[1].speedup_measured.estimate
    assert fastest == max(r.speedup_measured.estimate for r in trees)
    print_run(run_, Console(width=160))
    printed = capsys.readouterr().out
    assert "predicted and measured, T=1" in printed
    assert "Predicted to be fastest" in printed
    assert "Prediction and measurement" in section_html(
        prediction_finding(run_.predictions, run_.choices)
    )
    marked = [replace(row, disturbed="2 of 5 rounds were disturbed.") for row in run_.predictions]
    shown = section_html(prediction_finding(marked, run_.choices))
    assert shown.count("of the times before the run: 2 of 5 rounds were disturbed.") == 1
    assert "Prediction and measurement" in write_report(load_run(whole)).read_text()


def test_no_trace_predicts_a_rule_that_accepts_otherwise(whole, tmp_path):
    """Above temperature 0, acceptance under rrsw predicts no other rule, except `chain` on a chain."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    tree, chain = (
        next(method for method in manifest["methods"] if method.get("parents") == parents)
        for parents in ([-1, 0, 0, 1, 1, 2, 2], [-1, 0, 1])
    )
    assert tree["rule"] == {"T=0": "greedy", "T=1": "rrsw"}
    tree["rule"] = {"T=0": "traversal", "T=1": "traversal"}
    chain["rule"]["T=1"] = "chain"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    old, new = load_run(whole), load_run(folder)
    gone = [row for row in old.predictions if (row.sampling, row.method) == ("T=1", tree["name"])]
    assert len(gone) == 1
    assert new.predictions == [row for row in old.predictions if row not in gone]
    reason = "rule traversal: what was recorded before the run is of rule rrsw"
    assert [
        (row.sampling, row.reason) for row in new.unpredicted if row.method == tree["name"]
    ] == [("T=1", reason)]


def test_runs_of_before_are_reported(whole, tmp_path):
    """Their config has a removed key, and their folder has files that are no longer read."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["search"]["between"] = 24
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with RunFolder(folder) as records:
        records.keep(folder / "search" / "between-00000.json", "{}")
    assert load_run(folder).predictions == load_run(whole).predictions
    assert "Prediction and measurement" in write_report(load_run(folder)).read_text()


@pytest.mark.parametrize("without", ["plain", "trees"])
def test_speedups_are_over_plain_decoding(whole, without):
    """A run without it, or without a tree, has no prediction to show, and says so."""
    run_ = load_run(whole)
    kept = {
        name: replace(
            data,
            methods=tuple(m for m in data.methods if (m.kind == "plain") == (without != "plain")),
        )
        for name, data in run_.measurements.items()
    }
    assert predictions(run_, kept) == ([], [])
    assert prediction_finding([], {}) is None
    assert "{kind: plain}" in MISSING


def of_chains(ranks, law, rule, width=3):
    """Measurements with a trace that repeats these ranks, and times that grow with depth."""
    ranks = np.tile(ranks, 60)
    accepted = (ranks[:, None] == np.arange(width)).astype(float)
    trace = Trace(
        offsets=np.arange(5) * (len(ranks) // 4), tokens=np.zeros_like(ranks), ranks=ranks,
        probs=np.full((len(ranks), width), 0.3), accepted=accepted, law=law, rule=rule, sampling={},
        width=width,
    )  # fmt: skip
    latency = LatencyModel.from_tables(verify={1: 0.02, 64: 0.02}, draft=0.001)
    search = SearchConfig(width=width, depth=3, shrinkage=1.0)
    name = "T=0" if rule == "greedy" else "T=1"
    return Measured(search, {(name, law): trace}, latency, prefix=12)


def chosen_of(measured, folder, temperature, **method):
    best = {"kind": "best", "max_size": 4, "branching": 1}
    config = Config.model_validate(
        {
            "name": "x",
            "prompts": {"kind": "embedded", "count": 2, "tokens": 8},
            "max_new_tokens": 8,
            "samplings": [{"temperature": temperature}],
            "methods": [{"kind": "plain"}, {"kind": "tree", "shape": best, **method}],
            "search": {"width": 3, "depth": 3},
        }
    )
    return resolve(config, measured, folder).methods[1]


@pytest.mark.parametrize(
    ("temperature", "law", "rule", "method"),
    [
        (0, "deterministic", "greedy", {}),
        (1, "without_replacement", "rrsw", {}),
        (1, "without_replacement", "rrsw", {"law": "without_replacement"}),
        (1, "deterministic", "onehot", {"law": "deterministic"}),
    ],
)
def test_chains_are_judged_by_first_children_alone(tmp_path, temperature, law, rule, method):
    """A first child follows a second one, none follows a first one: a chain of 2 is worth one of 1."""
    measured = of_chains([1, 0, 3], law, rule)
    found = chosen_of(measured, tmp_path, temperature, **method)
    assert found.shape.parents == (-1, 0)
    name = f"T={temperature}"
    all_ranks = estimate_acceptance(measured.trace(name, law), by="depth", depth=3, ranks=3)
    assert all_ranks.rates[1, 0] > 0.4  # which would make a chain of two the fastest


def test_what_the_search_said_is_kept(tmp_path):
    measured = of_chains([0, 0, 1, 3], "deterministic", "greedy")
    found = chosen_of(measured, tmp_path, 0)
    kept = json.loads((tmp_path / "best-0.json").read_text())
    assert list(kept) == [found.name] == ["best for T=0"]
    said = kept["best for T=0"]
    assert "all 4 are equal" in said["verdict"]
    assert isinstance(said["notes"], list)
    assert said["rows"][0]["parents"] == list(found.shape.parents)
    assert said["rows"][0]["rank"] == 1
    assert said["rows"][-1]["kind"] == "plain"
    for row in said["rows"]:
        for key in ("tokens_per_step", "step_ms", "tokens_per_s", "speedup"):
            low, high = row[key]["low"] - 1e-9, row[key]["high"] + 1e-9
            assert low <= row[key]["estimate"] <= high
    before = (tmp_path / "best-0.json").stat().st_mtime_ns
    chosen_of(measured, tmp_path, 0)
    assert (tmp_path / "best-0.json").stat().st_mtime_ns == before
