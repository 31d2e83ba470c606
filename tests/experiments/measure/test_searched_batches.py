"""A search before a run of batches: it times rounds of as many texts as the run decodes side by side."""

import json

import pytest

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.records.measured import STAMP
from treespec.experiments.report.run import load_run
from treespec.search import LatencyModel
from treespec.tree import TreeShape


@pytest.fixture(scope="module")
def whole(searching, loaded_pair, tmp_path_factory):
    """A run of batches of two texts, from its measurements to its records. Read only."""
    path = tmp_path_factory.mktemp("searched") / "run"
    shared = {"kind": "shared_budget", "nodes": 6, "depth": 2, "branching": 2}
    methods = [*searching["methods"], {"kind": "tree", "shape": shared}]
    config = Config.model_validate(searching | {"batch": 2, "methods": methods})
    result = run(config, folder=path, load=lambda models: loaded_pair)
    assert not result.failures, result.failures[0].error
    return result.folder


def test_times_are_those_of_rounds(whole):
    latency = LatencyModel.load(whole / "search" / "latency.json")
    assert [*latency.batches] == [2]
    found = load_run(whole)
    assert len(found.methods) == 11
    for place in (0, 1):
        (advice,) = json.loads((whole / "search" / f"best-{place}.json").read_text()).values()
        assert advice["batch"] == 2


def test_predictions_are_of_all_texts_of_a_batch(whole):
    found = load_run(whole)
    latency = LatencyModel.load(whole / "search" / "latency.json")
    prefix = json.loads((whole / "search" / STAMP).read_text())["prefix"]
    rows = {row.method: row for row in found.predictions if row.sampling == "T=0"}
    assert {"plain", "chain 2", "cost-aware 6"} <= set(rows)
    reasons = {row.method: row.reason for row in found.unpredicted if row.sampling == "T=0"}
    assert "share" in reasons["shared 6"]
    chain = rows["chain 2"]
    taken = latency.step_s(TreeShape.chain(2), prefix, law="deterministic")
    assert chain.speed == pytest.approx(2 * chain.tokens.estimate / taken)
    plain = latency.plain_s(prefix, law="deterministic")
    assert chain.speedup.estimate == pytest.approx(chain.tokens.estimate * plain / taken)


def test_a_growth_by_times_needs_those_of_the_batch(settings, tmp_path):
    one = LatencyModel.from_tables(verify={1: 0.02, 8: 0.03}, draft=0.001)
    path = one.save(tmp_path / "latency.json")
    shape = {"kind": "cost_aware", "size": 4, "branching": 2, "depth": 2, "latency": str(path)}
    config = settings | {"methods": [{"kind": "tree", "shape": shape}]}
    build(Config.model_validate(config))
    with pytest.raises(ConfigError, match=r"shape.*batch = 2, but times are known for 1"):
        build(Config.model_validate(config | {"batch": 2}))
    two = one.from_tables(verify={1: 0.02, 8: 0.9}, draft=0.1, batch=2)
    LatencyModel.of_batches({1: one, 2: two}).save(path)
    for batch in (1, 2):
        experiment = build(Config.model_validate(config | {"batch": batch}))
        assert [*experiment.methods[0].tree.latency.batches] == [batch]
