"""Stand-ins for methods that wait for a measurement, and the methods that replace them."""

from dataclasses import replace

import numpy as np
import pytest

from treespec.experiments.config.build import build, wants_measured
from treespec.experiments.config.schema import Config, SearchConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.resolve import resolve
from treespec.experiments.records.measured import Measured
from treespec.search import LatencyModel, Trace

BASE = {
    "name": "x",
    "prompts": {"kind": "embedded", "count": 2, "tokens": 8},
    "max_new_tokens": 8,
    "samplings": [{"temperature": 1}],
    "search": {"width": 3, "depth": 3},
}
OPTIMAL = {"kind": "optimal", "rates": "measured", "size": 6, "depth": 3}
BEST = {"kind": "best", "max_size": 6, "depth": 3, "branching": 2}


def _config(*methods, **changes):
    trees = [{"kind": "tree", **(m if "shape" in m else {"shape": m})} for m in methods]
    return Config.model_validate(BASE | {"methods": [{"kind": "plain"}, *trees]} | changes)


def _trace(law, rule, first):
    rng, texts, length = np.random.default_rng(0), 4, 60
    ranks = rng.choice(4, texts * length, p=[first, 0.1, 0.05, 0.85 - first])
    rates = np.tile([first, 0.1, 0.05], (texts * length, 1))
    return Trace(
        offsets=np.arange(texts + 1) * length, tokens=np.zeros(texts * length, dtype=np.int64),
        ranks=ranks, probs=rates, accepted=rates, law=law, rule=rule, sampling={}, width=3,
    )  # fmt: skip


def _measured(first=0.6, verify=0.02):
    traces = {
        ("T=1", "without_replacement"): _trace("without_replacement", "rrsw", first),
        ("T=1", "deterministic"): _trace("deterministic", "onehot", first / 2),
    }
    latency = LatencyModel.from_tables(verify={1: 0.02, 64: verify}, draft=0.002)
    return Measured(SearchConfig(width=3, depth=3), traces, latency, prefix=12)


def test_laws_and_rules_of_waiting_methods_are_known_before():
    config = _config(
        {"shape": OPTIMAL, "law": "iid"},
        {"kind": "cost_aware", "size": 6, "depth": 3, "branching": 2},
        {"kind": "eagle2", "k": 2, "depth": 2, "size": 5, "calibration": "measured"},
    )
    known = build(config)
    assert [str(m.choices["T=1"].law) for m in known.methods[1:]] == [
        "iid", "deterministic", "deterministic",
    ]  # fmt: skip
    assert str(known.methods[1].choices["T=1"].rule) == "rrs"
    assert [m.kind for m in config.methods if not wants_measured(m)] == ["plain"]


def test_names_that_clash_are_found_before_anything_is_measured():
    with pytest.raises(
        ConfigError,
        match=r"methods\[2\].*an earlier method is called 'best' too; give one of them a 'name'",
    ):
        build(_config(BEST, BEST | {"max_size": 5}))
    build(_config(OPTIMAL, {"shape": OPTIMAL, "law": "deterministic"}))
    grown = {"kind": "opt_tree", "size": 6, "depth": 3}
    build(_config(grown, grown | {"calibration": "measured"}))


def test_dyspec_is_not_calibrated_by_children_of_another_law():
    with pytest.raises(ConfigError, match=r"methods\[1\]\.shape\.calibration.*DySpec draws"):
        build(_config({"kind": "dyspec", "size": 6, "depth": 3, "calibration": "measured"}))


def test_a_named_file_is_read_whatever_was_measured(tmp_path):
    path = tmp_path / "slow.json"
    LatencyModel.from_tables(verify={1: 0.01, 64: 50.0}, draft=1.0).save(path)
    config = _config(BEST, BEST | {"latency": str(path)} | {"max_size": 5})
    config = config.model_copy(
        update={
            "methods": (*config.methods[:2], config.methods[2].model_copy(update={"name": "slow"}))
        }
    )
    fast, slow = resolve(config, _measured(), tmp_path).methods[1:]
    assert fast.name == "best for T=1"
    assert slow.kind == "plain"
    assert slow.name == "slow for T=1: plain decoding"


def test_a_limit_of_branching_does_not_stop_chains(tmp_path):
    measured = _measured(first=0.8)
    tables = {"verify": {1: 0.02, 64: 0.021}, "draft": 0.0001}
    laws = [LatencyModel.from_tables(**tables, law=law) for law in ("iid", "without_replacement")]
    both = LatencyModel({1: {**laws[0].times(), **laws[1].times()}}, {})
    measured = replace(measured, latency=both)
    found = resolve(_config(BEST), measured, tmp_path).methods[1]
    assert len(found.shape.parents) > 2


def test_cost_aware_expects_what_was_measured(tmp_path):
    measured = _measured()
    measured.latency.save(tmp_path / "latency.json")
    shape = {"kind": "cost_aware", "size": 6, "depth": 3, "branching": 2}
    found = resolve(_config(shape), measured, tmp_path).methods[1]
    rates = measured.estimate("T=1", "deterministic", ranks=1).rates
    assert found.shape.prior == pytest.approx(rates[0, 0])
    assert found.shape.prefix == 12
    given = resolve(_config(shape | {"prior": 0.9}), measured, tmp_path).methods[1]
    assert given.shape.prior == 0.9


def test_cost_aware_decodes_plainly_where_the_first_token_does_not_pay(tmp_path):
    from treespec.tree import TreeShape

    measured = _measured(first=0.2, verify=0.02)
    LatencyModel.from_tables(verify=0.02, draft=0.01).save(tmp_path / "latency.json")
    shape = {"kind": "cost_aware", "size": 6, "depth": 3, "branching": 2}
    tree = build(resolve(_config(shape), measured, tmp_path)).methods[1].tree
    assert tree.next(TreeShape.chain(0), lambda: None) == ()


def test_what_search_files_name_as_plain_decoding_is_plain(tmp_path):
    from treespec.search import estimate_acceptance

    LatencyModel.from_tables(verify={1: 0.01, 64: 5.0}, draft=1.0).save(tmp_path / "slow.json")
    estimate = estimate_acceptance(_trace("without_replacement", "rrsw", 0.5), by="depth", depth=3)
    (tmp_path / "rates.json").write_text(estimate.to_json())
    files = {"acceptance": str(tmp_path / "rates.json"), "latency": str(tmp_path / "slow.json")}
    built = build(_config(BEST | files)).methods[1]
    assert built.kind == "plain"
    assert built.name == "best: plain decoding"
