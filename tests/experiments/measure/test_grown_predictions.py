"""Trees that grow, predicted before a run and measured in it: one run of a tiny pair, and old folders."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure import before_run as measured
from treespec.experiments.measure.before_run import _growing, _with_room
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.page import write_report
from treespec.experiments.report.prediction import (
    DRAWN,
    GROWN,
    MARGINAL,
    NOT_OURS,
    NOT_RECORDED,
    OWN_DRAFT,
    prediction_finding,
)
from treespec.experiments.report.run import load_run
from treespec.search import InvalidTrace, LatencyModel, Trace
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.choice.growths import DECIDING
from treespec.search.growth import DySpec, Eagle2, EqualGrowth
from treespec.search.latency.step_parts import seconds_of
from treespec.tree import Law

BUDGET = {"kind": "budget", "depth": 3}
SHAPES = {
    "eagle": {"kind": "eagle2", "k": 3, "depth": 3, "size": 7},
    "equal": {"kind": "equal_growth", "width": 2, "depth": 3, "size": 5},
    "aware": {"kind": "cost_aware", "size": 6, "branching": 2, "depth": 3},
    "never": {"kind": "cost_aware", "size": 4, "branching": 2, "depth": 2, "prior": 0.01},
    "exec": {"kind": "specexec", "size": 9, "branching": 4, "depth": 3, "calibration": "measured"},
    "drawn": {"kind": "dyspec", "size": 4, "depth": 3},
    "one row": {"kind": "ddtree", "size": 5, "depth": 2},
}
METHODS = [
    {"kind": "plain"},
    *({"kind": "tree", "name": name, "shape": shape} for name, shape in SHAPES.items()),
    {"kind": "tree", "name": "copied", "shape": BUDGET, "draft": {"source": "lookup"}},
]


@pytest.fixture(scope="module")
def growing(settings):
    """A config whose search records the same texts that its run decodes."""
    search = {
        "prompts": settings["prompts"], "max_new_tokens": 16, "width": 2, "depth": 3,
        "sizes": [1, 2, 4, 8, 16], "repeats": 2,
    }  # fmt: skip
    return settings | {"methods": METHODS, "search": search, "max_new_tokens": 16, "together": 1}


@pytest.fixture(scope="module")
def grown(growing, loaded_pair, tmp_path_factory):
    """A run from its measurements to its records. Read only."""
    path = tmp_path_factory.mktemp("grown") / "run"
    result = run(Config.model_validate(growing), folder=path, load=lambda models: loaded_pair)
    assert not result.failures, result.failures[0].error
    return result.folder


def rows_of(folder, sampling="T=0"):
    return {row.method: row for row in load_run(folder).predictions if row.sampling == sampling}


def reasons_of(run_, sampling):
    return {row.method: row.reason for row in run_.unpredicted if row.sampling == sampling}


@pytest.mark.parametrize(
    ("name", "growth"),
    [("eagle", Eagle2(3, 3, 7)), ("equal", EqualGrowth(2, 3, 5)), ("drawn", DySpec(4, 3))],
)
def test_a_growth_is_predicted_by_its_replay(grown, name, growth):
    row, folder = rows_of(grown)[name], grown / "search"
    trace = Trace.load(folder / "trace-0-deterministic.npz")
    times = LatencyModel.load(folder / "latency.json")
    found = replay_growth(trace, growth)
    assert row.tokens.estimate == found.tokens_per_step
    assert (row.tokens.low, row.tokens.high) == (found.interval().low, found.interval().high)
    assert (row.size, row.sure) == (found.nodes_per_step, found.sure.mean())
    law = str(next(iter(growth.laws)))
    prefix = json.loads((folder / "config.json").read_text())["prefix"]
    parts = times.at(prefix, law)
    levels = [[Counter(level) for level in step] for step in found.levels]
    steps = seconds_of(parts.grown(levels, found.sizes.tolist()))
    assert row.untimed == (name == "drawn") == (parts.decide is None)
    assert row.speed == pytest.approx(found.emitted.sum() / steps.sum())
    plain_s = times.plain_s(prefix, law="deterministic")
    assert row.speedup.estimate == pytest.approx(row.speed * plain_s)
    texts = found.emitted / np.add.reduceat(steps, found.offsets[:-1]) * plain_s
    assert texts.min() - 1e-9 <= row.speedup.low <= row.speedup.high <= texts.max() + 1e-9


def test_live_runs_on_the_same_texts_keep_as_much(grown):
    rows = rows_of(grown)
    exact = {f"exec, calibrated for T={i}" for i in (0, 1)}
    assert set(rows) == {"plain", "eagle", "equal", "aware", "never", "drawn", *exact}
    for row in rows.values():
        assert row.sure in (None, 1.0)
        assert row.tokens.estimate == row.tokens_measured.estimate, row.method
    assert rows["eagle"].tokens.estimate > 1.2
    assert rows["never"].size == rows["never"].speedup.estimate == 1  # it decodes plainly


def test_above_temperature_0_children_that_are_chosen_are_predicted(grown):
    """The trace records one draw of the texts, with the law of a live run."""
    rows = rows_of(grown, "T=1")
    assert {"eagle", "equal", "aware"} <= set(rows)
    assert "drawn" not in rows
    trace = Trace.load(grown / "search" / "trace-1-deterministic.npz")
    assert rows["eagle"].tokens.estimate == replay_growth(trace, Eagle2(3, 3, 7)).tokens_per_step


def test_what_has_no_prediction_is_said(grown):
    run_ = load_run(grown)
    cold, warm = (reasons_of(run_, name) for name in ("T=0", "T=1"))
    assert cold == {"one row": MARGINAL, "copied": OWN_DRAFT}
    assert warm == cold | {"drawn": DRAWN}
    finding = run_.findings["predictions"]
    said = finding.tables[1].said
    assert said.endswith(
        f"Without a prediction: drawn ({DRAWN}); one row ({MARGINAL}); copied ({OWN_DRAFT})."
    )
    assert GROWN in finding.notes
    assert finding.remarks[-1] == f"Caution: {DECIDING}: drawn."
    assert finding.tables[0].said.endswith(
        f"Without a prediction: one row ({MARGINAL}); copied ({OWN_DRAFT})."
    )


def test_steps_that_are_not_all_proved_are_said_at_the_name(grown):
    run_ = load_run(grown)
    row = next(row for row in run_.predictions if row.method == "eagle")
    poor = replace(row, sure=0.951)
    (table,) = prediction_finding([poor], run_.choices).tables
    assert str(table.rows[0][0]) == "eagle (95.1% of steps sure)"


def test_folders_without_rows_are_reported(grown, tmp_path):
    """Measurements as earlier runs have them."""
    folder = tmp_path / "run"
    shutil.copytree(grown, folder)
    for path in (folder / "search").glob("*.npz"):
        replace(Trace.load(path), draft_rows=None).save(path)
    old, new = load_run(folder), load_run(grown)
    without = {
        "eagle",
        "equal",
        "aware",
        "never",
        "exec, calibrated for T=0",
        "exec, calibrated for T=1",
    }
    assert [row.method for row in old.predictions] == ["plain", "drawn"]  # at T=1 there is no tree
    assert old.predictions == [row for row in new.predictions if row in old.predictions]
    assert {m for m, why in reasons_of(old, "T=0").items() if why == NOT_RECORDED} == without
    assert "Prediction and measurement" in write_report(old).read_text()
    said = old.findings["predictions"].remarks[-1]
    assert said.startswith("T=1: Without a prediction: ")
    assert NOT_RECORDED in said


def test_a_growth_reads_the_files_that_it_read_in_the_run(grown, tmp_path):
    """They come from the run's own folder, even if it was moved, and never from others."""
    folder = tmp_path / "run"
    shutil.copytree(grown, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for method in manifest["methods"]:
        for key in ("latency", "calibration"):
            if method["growth"] and method["growth"].get(key):
                name = method["growth"][key].rpartition("/")[2]
                method["growth"][key] = f"/gone/search/{name}"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert load_run(folder).predictions == load_run(grown).predictions
    path = folder / "search" / "calibration-0.json"
    path.write_text(path.read_text() + " ")
    assert reasons_of(load_run(folder), "T=0")["exec, calibrated for T=0"] == NOT_OURS
    assert "aware" in rows_of(folder)


def test_without_growths_nothing_more_is_recorded(growing, loaded_pair, tmp_path, monkeypatch):
    """Drawn trees and trees of other sources do not need it either."""
    asked, real = [], measured.trace

    def spied(*arguments, **options):
        asked.append(options)
        return real(*arguments, **options)

    monkeypatch.setattr(measured, "trace", spied)
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
    others = [m for m in METHODS if m.get("name") in (None, "drawn", "one row", "copied")]
    search = growing["search"] | {"repeats": 1, "sizes": [1, 4], "max_new_tokens": 4}
    config = Config.model_validate(growing | {"methods": [*others, chain], "search": search})
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    assert len(asked) == 3
    assert not any({"beam", "beam_depth"} & set(options) for options in asked)
    for path in (folder / "search").glob("*.npz"):
        assert Trace.load(path).draft_rows is None


def test_the_beam_is_what_the_growths_ask_for(growing):
    shapes = [
        {"kind": "eagle2", "k": 12, "depth": 2, "size": 5},
        {"kind": "opt_tree", "size": 17, "depth": 4},
        {"kind": "opt_tree", "size": 17, "depth": 5, "branching": 3},
        {"kind": "equal_growth", "width": 9, "depth": 2, "size": 5, "calibration": "measured"},
        {"kind": "cost_aware", "size": 4, "branching": 10, "depth": 3},
    ]
    trees = [{"kind": "tree", "shape": s, "name": str(i)} for i, s in enumerate(shapes)]
    lossy = {"kind": "tree", "shape": shapes[0], "rule": "typical", "name": "lossy"}
    config = Config.model_validate(growing | {"methods": [*METHODS, *trees, lossy]})
    known = build(config)
    needs = [(beam, depth) for _, beam, depth in _growing(known, "T=1", Law.DETERMINISTIC)]
    assert sorted(needs) == [(8, 2)] + [(8, 3)] * 4 + [(8, 5), (9, 2), (10, 3), (12, 2), (16, 4)]
    assert _growing(known, "T=1", Law.WITHOUT_REPLACEMENT) == []


def test_growths_are_left_out_until_the_others_have_room():
    growing = [SimpleNamespace(name=str(beam), beam=beam, depth=30 - beam) for beam in (8, 9, 20)]
    asked, said = [], []

    def record(**options):
        asked.append(options)
        if options and options["beam"] > 8:
            raise (ConfigError if options["beam"] > 9 else InvalidTrace)("too much")
        return "trace"

    assert _with_room(record, growing, 15, said.append) == "trace"
    assert asked == [
        {"beam": 15, "beam_depth": 22}, {"beam": 9, "beam_depth": 22}, {"beam": 8, "beam_depth": 22}
    ]  # fmt: skip
    assert said == [f"{name} will have no prediction: too much" for name in (20, 9)]
