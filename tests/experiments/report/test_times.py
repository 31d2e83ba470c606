"""Times of interleaved runs: adjusted times, totals, and the smallest difference that a run resolves."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import polars as pl
import pytest
from permuted import differences

from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.measurements import CLOCK, STAGED, measure
from treespec.experiments.report.run import load_run
from treespec.experiments.report.times import noise_caution, resolution, resolution_sentence
from treespec.search.intervals import Interval

SHAPES = ({"kind": "chain", "depth": 2}, {"kind": "expansion", "branching": [2, 2]})


@pytest.fixture(scope="module")
def finished(settings, loaded_pair, tmp_path_factory):
    """A run in turns with enough steps for times to be adjusted."""
    trees = [{"kind": "tree", "shape": shape} for shape in SHAPES]
    changes = {
        "methods": [{"kind": "generate"}, {"kind": "plain"}, *trees],
        "prompts": settings["prompts"] | {"count": 4},
        "max_new_tokens": 40,
        "samplings": [{"temperature": 0}],
        "name": "times",
    }
    path = tmp_path_factory.mktemp("times") / "run"
    config = Config.model_validate(settings | changes)
    return load_run(run(config, folder=path, load=lambda models: loaded_pair).folder)


@pytest.fixture(scope="module")
def grouped(settings, loaded_pair, tmp_path_factory):
    """A run of two groups under random sampling, with memory for three methods at once."""
    trees = [{"kind": "tree", "shape": shape} for shape in (*SHAPES, {"kind": "chain", "depth": 3})]
    changes = {
        "methods": [{"kind": "plain"}, *trees],
        "max_new_tokens": 24,
        "samplings": [{"temperature": 1}],
        "together": 3,
        "alone": 0,
        "name": "grouped",
    }
    path = tmp_path_factory.mktemp("grouped") / "run"
    config = Config.model_validate(settings | changes)
    return load_run(run(config, folder=path, load=lambda models: loaded_pair).folder)


def slowed(
    finished,
    folder,
    factor,
):
    """The same steps at known costs, on a machine that is slower during some of them.

    It is slower during every other stretch of 40 steps.
    """
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(finished.manifest))
    steps = finished.all_steps.sort("at_s")
    random = np.random.default_rng(0)
    stretch = np.arange(len(steps)) // 40 % 2
    pace = 1 + (factor - 1) * stretch
    pace = pace * np.exp(random.normal(0, 0.01, len(steps)))
    cost = 4e-3 + 5e-4 * steps["size"].to_numpy() + 1e-3 * steps["depth"].to_numpy()
    parts = {"step_s": 1.0, "draft_s": 0.3, "verify_s": 0.5, "accept_s": 0.05, "commit_s": 0.05}
    staged = steps["verify_s"].is_not_null()
    steps = steps.with_columns(
        pl.when(staged | (name == "step_s")).then(pl.Series(part * cost * pace)).alias(name)
        for name, part in parts.items()
    )
    took = steps["step_s"].to_numpy()
    steps = steps.with_columns(pl.Series("at_s", np.cumsum(took) - took))
    key = ["prompt", "sampling", "method", "repeat"]
    sums = steps.group_by(key).agg(
        pl.when(pl.col(c).is_not_null().all()).then(pl.col(c).sum()).alias(c) for c in parts
    )
    prompts = finished.all_prompts.drop("decode_s", "total_s", *STAGED).join(sums, on=key)
    prompts = prompts.with_columns(
        pl.col("step_s").alias("decode_s"),
        (pl.col("prefill_s") + pl.col("step_s")).alias("total_s"),
    ).drop("step_s")
    steps.select(finished.all_steps.columns).write_parquet(folder / "steps.parquet")
    prompts.select(finished.all_prompts.columns).write_parquet(folder / "prompts.parquet")
    return load_run(folder)


def test_totals_stay_beside_what_is_adjusted(finished):
    data = finished.measurements["T=0"]
    rows = finished.prompts
    for name in ("generate", "plain", "chain 2"):
        measured = rows.filter(pl.col("method") == name)["decode_s"].sum()
        assert data.values[name, CLOCK].sum() == pytest.approx(measured)
    assert data.twin == ("generate (twin)", "generate")
    assert "generate (twin)" not in {m.name for m in data.methods}
    assert len(finished.prompts) == 4 * 4


def test_a_machine_that_is_slower_for_a_while_changes_no_ratio(finished, tmp_path):
    even, uneven = (slowed(finished, tmp_path / str(f), f) for f in (1.0, 3.0))
    for run_ in (even, uneven):
        assert run_.measurements["T=0"].totals_because is None

    def speedups(loaded, which):
        (summary,) = loaded.summaries
        return {row.method.name: getattr(row, which).estimate for row in summary.rows}

    adjusted = speedups(uneven, "speedup")
    for name, expected in speedups(even, "speedup").items():
        assert adjusted[name] == pytest.approx(expected, rel=0.02), name
    rates = [loaded.measurements["T=0"].rate("plain") for loaded in (even, uneven)]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)
    clocks = [loaded.measurements["T=0"].rate("plain", CLOCK) for loaded in (even, uneven)]
    assert clocks[1] < 0.8 * clocks[0]


def test_stages_add_up_and_factors_multiply(finished, tmp_path):
    loaded = slowed(finished, tmp_path / "run", 2.0)
    data = loaded.measurements["T=0"]
    for m in data.methods:
        if m.kind in ("plain", "tree"):
            stages = sum(data.values[m.name, column] for column in STAGED)
            assert (stages.sum() < data.values[m.name, "decode_s"].sum()).all()
            assert stages.sum() > 0.5 * data.values[m.name, "decode_s"].sum()
    for row in loaded.explanations["T=0"]:
        factors = prod(factor.estimate for factor in row.factors.values())
        assert factors == pytest.approx(row.measured.estimate)


def test_the_twin_tells_what_the_machine_could_tell_apart(finished, tmp_path):
    data = slowed(finished, tmp_path / "run", 1.0).measurements["T=0"]
    ratio = resolution(data)
    assert ratio.estimate == pytest.approx(1.0, abs=0.01)
    sentence = resolution_sentence(data)
    least = 100 * max(ratio.high - 1, 1 - ratio.low)
    assert sentence.startswith(f"This run could tell apart {least:.1f} %: two identical copies")
    assert ("it excludes 1" in sentence) != ratio.contains(1.0)
    twin, _ = data.twin
    slower = data.values | {(twin, "decode_s"): 1.1 * data.values[twin, "decode_s"]}
    sentence = resolution_sentence(replace(data, values=slower))
    assert "(it excludes 1, as one such interval in twenty does by chance)" in sentence


@pytest.mark.parametrize("noise", [1.0, 1.3])
def test_a_difference_as_small_as_that_of_identical_methods_is_doubted(finished, noise):
    data = finished.measurements["T=0"]
    twin, method = data.twin
    cost = np.ones(len(data.prompts))
    uneven = np.where(np.arange(len(cost)) % 2, noise, 1 / noise)
    times = {(method, "decode_s"): cost, (twin, "decode_s"): cost * uneven}
    data = replace(data, values=data.values | times)
    found = {"trees and chains": Interval(1.2, 1.1, 1.3), "cats and dogs": Interval(0.5, 0.4, 0.6)}
    caution = noise_caution(data, found)
    assert (caution is None) is (noise == 1.0)
    if caution is not None:
        assert caution.startswith("Caution: trees and chains differ by no more than two identical")
    slower = {"trees and chains": Interval(1 / 1.2, 0.7, 0.9)}
    assert (noise_caution(data, slower) is None) is (noise == 1.0)
    assert noise_caution(replace(data, twin=None), found) is None
    assert noise_caution(data, {}) is None


def test_groups_that_ran_one_after_the_other_are_said(grouped):
    first, second = grouped.manifest["groups"]
    assert first == ["plain", "plain (twin)", "chain 2"]
    assert second == ["plain (twin 2)", "expansion 2x2", "chain 3"]
    data = grouped.measurements["T=1"]
    assert data.twin == ("plain (twin)", "plain")
    assert "turns in 2 groups" in data.remark
    assert any("turns in 2 groups" in line for line in grouped.verdicts["T=1"])


ASSISTED = {"kind": "assisted", "lengths": [2], "thresholds": [0.0]}


@pytest.mark.parametrize(
    ("methods", "together", "why"),
    [
        (
            [{"kind": "plain"}, {"kind": "tree", "shape": SHAPES[0]}],
            2,
            "no more than 2 methods took",
        ),
        (
            [ASSISTED, ASSISTED | {"name": "again"}],
            None,
            "no method is plain decoding or has a tree",
        ),
    ],
)
def test_a_run_in_turns_without_a_twin_says_why(start, methods, together, why):
    changes = {"methods": methods, "together": together, "samplings": [{"temperature": 0}]}
    loaded = load_run(start(changes | {"alone": 1}).folder)
    data = loaded.measurements["T=0"]
    assert data.twin is None
    sentence = resolution_sentence(data)
    assert sentence.startswith(f"No twin ran, because {why}")
    assert sentence in loaded.verdicts["T=0"]
    finding = loaded.findings["times"]
    assert f"T=0: {sentence}" in finding.remarks
    assert len(finding.tables[0].rows) == 2
    assert all(row[3].text != "–" for row in finding.tables[0].rows)


def test_a_twin_that_failed_on_a_prompt_is_not_compared_but_missed(finished):
    failed = (pl.col("method") == "generate (twin)") & (pl.col("prompt") == 1)
    error = pl.when(failed).then(pl.lit("out of memory")).otherwise(pl.col("error"))
    rows = finished.all_prompts.with_columns(error.alias("error"))
    data = measure(replace(finished, all_prompts=rows), "T=0")
    assert data.prompts == (0, 1, 2, 3)
    sentence = resolution_sentence(data)
    assert sentence.startswith("The twin of generate did not finish every prompt that is compared")


@pytest.mark.parametrize("together", [None, 4])
@pytest.mark.parametrize("method", [{"kind": "plain"}, {"kind": "tree", "shape": SHAPES[0]}])
def test_one_method_has_totals_and_nothing_to_compare(start, method, together):
    done = start({"methods": [method], "together": together, "samplings": [{"temperature": 0}]})
    path = done.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    assert (manifest["together"], manifest["twins"]) == (1, {})
    manifest["sessions"][0]["busy_percent"] = 40.0
    for turns in (1, 2):  # as older runs say
        path.write_text(json.dumps(manifest | {"together": turns}))
        loaded = load_run(done.folder)
        verdict, busy = loaded.verdicts["T=0"]
        assert verdict.startswith(
            "No verdict: the run has a single method: there is nothing to compare"
        )
        assert "its times are not reliable" in busy
        assert loaded.findings["times"] is None
        data = loaded.measurements["T=0"]
        (name,) = (m.name for m in data.methods)
        assert (data.values[name, "decode_s"] == data.values[name, CLOCK]).all()


def test_a_run_by_prompts_has_totals_and_says_so(start, settings):
    chain = {"kind": "tree", "shape": SHAPES[0]}
    loaded = load_run(
        start({"methods": [{"kind": "plain"}, chain], "together": 1, "alone": 0}).folder
    )
    assert loaded.findings["times"] is None
    assert resolution_sentence(loaded.measurements["T=0"]) is None
    assert "decoded each prompt one after another" in loaded.measurements["T=0"].totals_because
    assert (
        sum("decoded each prompt one after another" in line for line in loaded.verdicts["T=0"]) == 1
    )
    for method in ("plain", "chain 2"):
        values = loaded.measurements["T=0"].values
        assert (values[method, "decode_s"] == values[method, CLOCK]).all()


def test_no_order_of_prompts_methods_or_ids_changes_a_bit(finished, grouped):
    """The verdict used to depend on the order of lines in a file of prompts."""
    assert list(differences(finished, 3)) == []
    assert list(differences(grouped, 3)) == []
