"""Units on real (tiny) models: the trees that are kept, repeats, and meters."""

import json
from types import SimpleNamespace

import polars as pl
import pytest

from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report import details
from treespec.experiments.report.run import load_run
from treespec.experiments.run import unit as unit_module
from treespec.experiments.run.meters import meter as meters_module
from treespec.experiments.run.meters.meter import Meters

KEY = ["prompt", "sampling", "method", "repeat"]


@pytest.fixture(scope="module")
def finished(settings, loaded_pair, tmp_path_factory):
    """A run that keeps trees of one prompt, with two repeats. Read only."""
    changes = {"trees": 1, "repeats": 2, "name": "repeats"}
    changes["methods"] = [
        m for m in settings["methods"] if m["kind"] in ("generate", "plain", "tree")
    ]
    path = tmp_path_factory.mktemp("unit") / "run"
    config = Config.model_validate(settings | changes)
    return load_run(run(config, folder=path, load=lambda models: loaded_pair).folder)


def trees_of(found):
    return pl.read_parquet(found.folder / "trees.parquet")


def test_trees_are_those_of_the_steps(finished, loaded_pair):
    trees, steps = trees_of(finished), finished.steps
    ours = pl.col("verify_s").is_not_null()
    kept = steps.filter((pl.col("prompt") == 0) & (pl.col("repeat") == 0) & ours)
    assert trees.select(*KEY, "step").rows() == kept.select(*KEY, "step").rows()
    assert set(trees["method"]) == {"plain", "chain 3", "expansion 2x2"}
    tokenizer = loaded_pair.tokenizer
    for tree, step in zip(trees.iter_rows(named=True), kept.iter_rows(named=True), strict=True):
        assert len(tree["parents"]) == len(tree["tokens"]) == len(tree["pieces"]) == step["size"]
        assert tree["path"][0] == 0
        assert len(tree["path"]) == step["accepted"] + 1
        assert all(
            tree["parents"][child] == parent
            for parent, child in zip(tree["path"], tree["path"][1:], strict=False)
        )
        assert tree["pieces"] == [tokenizer.decode([token]) for token in tree["tokens"]]
        assert tree["bonus_piece"] == tokenizer.decode([tree["bonus"]])


def test_trees_give_the_text_back(finished):
    """Accepted nodes and bonus tokens, joined and cut to the budget, are the new tokens."""
    for row in finished.prompts.iter_rows(named=True):
        if row["method"] == "generate" or row["prompt"] or row["repeat"]:
            continue
        mine = trees_of(finished).filter(
            (pl.col("method") == row["method"]) & (pl.col("sampling") == row["sampling"])
        )
        found, last = [], None
        for tree in mine.sort("step").iter_rows(named=True):
            assert last in (None, tree["tokens"][0])  # the root is the last committed token
            found += [*(tree["tokens"][node] for node in tree["path"][1:]), tree["bonus"]]
            last = tree["bonus"]
        assert found[: row["new_tokens"]] == row["tokens"]


def test_no_trees_are_kept_if_none_are_wanted(settings, loaded_pair, tmp_path):
    changes = {"trees": 0, "methods": [{"kind": "plain"}]}
    config = Config.model_validate(settings | changes)
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    assert len(pl.read_parquet(folder / "trees.parquet")) == 0
    assert not (folder / "trees.jsonl").exists()


def test_repeats_have_seeds_and_orders_of_their_own(finished, settings, loaded_pair, tmp_path):
    rows = finished.prompts
    assert len(rows) == 2 * 2 * 2 * 4
    pairs = rows.filter(pl.col("repeat") == 0).join(
        rows.filter(pl.col("repeat") == 1), on=["prompt", "sampling", "method"], suffix="_again"
    )
    assert len(pairs) == 16
    assert (pairs["seed"] != pairs["seed_again"]).all()
    assert (pairs["order"] != pairs["order_again"]).any()
    sampled = pairs.filter(pl.col("sampling") == "T=1")
    assert (sampled["tokens"] != sampled["tokens_again"]).any()
    greedy = pairs.filter(pl.col("sampling") == "T=0")
    assert (greedy["tokens"] == greedy["tokens_again"]).all()
    # the first repeat equals a run without repeats
    config = Config.model_validate(settings | {"methods": [settings["methods"][-1]]})
    once = load_run(run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder)
    mine = rows.filter((pl.col("repeat") == 0) & (pl.col("method") == "expansion 2x2"))
    assert mine["tokens"].to_list() == once.prompts["tokens"].to_list()


def test_a_run_with_repeats_resumes(finished, settings, loaded_pair, tmp_path, monkeypatch):
    changes = {"trees": 1, "repeats": 2, "name": "repeats"}
    changes["methods"] = [
        m for m in settings["methods"] if m["kind"] in ("generate", "plain", "tree")
    ]
    config = Config.model_validate(settings | changes)
    real, count = unit_module.run_unit, iter(range(100))

    def stop(*arguments, **more):
        if next(count) == 5:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr("treespec.experiments.run.runner.run_unit", stop)
        with pytest.raises(KeyboardInterrupt):
            run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    again = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)
    columns = [*KEY, "order", "tokens", "steps", "seed"]
    found = load_run(again.folder)
    assert found.prompts.select(columns).equals(finished.prompts.select(columns))
    assert trees_of(found).equals(trees_of(finished))
    assert len(found.manifest["sessions"]) == 2


def test_meters_are_read_and_the_manifest_says_what_is_missing(finished):
    rows, about = finished.prompts, finished.manifest["meters"]
    assert (rows["rss_bytes"] > 10 * 2**20).all()
    for column, why in about["unavailable"].items():
        assert rows[column].null_count() == len(rows), column
        assert why
    for column in about["sources"]:
        assert rows[column].null_count() < len(rows), column
    assert "peak_cuda_bytes" in about["unavailable"]
    session = finished.manifest["sessions"][0]
    assert set(session) == {
        "started", "git_hash", "versions", "hardware", "idle_w", "busy_percent",
    }  # fmt: skip
    assert session["hardware"] == finished.manifest["hardware"]


def test_only_the_first_repeat_runs_by_itself():
    config = SimpleNamespace(alone=2)
    alone = [
        (index, repeat)
        for index in range(3)
        for repeat in range(2)
        if unit_module.Unit((SimpleNamespace(index=index),), "T=0", repeat).runs_alone(config)
    ]
    assert alone == [(0, 0), (1, 0)]


def test_the_time_by_itself_is_that_of_decoding(monkeypatch):
    outcomes = [SimpleNamespace(total_s=5.0, prefill_s=2.0), "no room"]
    monkeypatch.setattr(unit_module, "_capture_before", lambda pair: None)
    monkeypatch.setattr(unit_module, "finish_batch", lambda rounds, texts: outcomes)
    bench = SimpleNamespace(meters=Meters([]), pair=None)
    first, second = unit_module._by_itself(bench, list, 2)
    assert (first["alone_s"], second) == (3.0, {"alone_error": "no room"})


def test_texts_of_which_one_begins_the_other_have_no_margin():
    """One ended earlier: no token differs that rounding could explain."""
    for tokens, reference in (((1, 2), (1, 2, 3)), ((1, 2, 3), (1, 2))):
        found = unit_module._compare(None, None, "T=0", SimpleNamespace(tokens=tokens), reference)
        assert found == {
            "equal_to_plain": False,
            "first_divergence": 2,
            "divergence_margin": None,
        }


def test_every_group_comes_first_in_turn():
    """From unit to unit, and from setting to setting of one prompt."""
    groups = [{"a": 1}, {"b": 2}, {"c": 3}]
    experiment = SimpleNamespace(samplings={"T=0": None, "T=1": None})
    bench = SimpleNamespace(groups=groups, experiment=experiment)
    rotated = unit_module._rotated_groups
    assert [rotated(bench, n, "T=0")[0] for n in range(4)] == [*groups, groups[0]]
    assert rotated(bench, 0, "T=1") == [groups[1], groups[2], groups[0]]


def test_meters_can_be_left_out(settings, loaded_pair, tmp_path):
    config = Config.model_validate(settings | {"meters": [], "methods": [{"kind": "plain"}]})
    folder = run(config, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["meters"]["sources"] == {}
    assert pl.read_parquet(folder / "prompts.parquet")["rss_bytes"].null_count() == 4


def test_without_generate_the_plain_loop_is_the_reference(start):
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
    changes = {"methods": [{"kind": "plain"}, chain], "samplings": [{"temperature": 0}]}
    rows = pl.read_parquet(start(changes).folder / "prompts.parquet")
    assert rows["equal_to_plain"].to_list() == [True] * len(rows)


def test_a_method_that_fails_by_itself_says_why(start, monkeypatch):
    """Its result in turns counts; meter readings of the failed attempt are dropped."""
    real, begun, calls = unit_module.decode_ours, set(), []

    def fragile(pair, method, sampling, ids, **arguments):
        text = method.name, sampling, tuple(ids.tolist())
        if method.name == "chain 2" and text in begun:
            raise MemoryError("no room for it")
        begun.add(text)
        return real(pair, method, sampling, ids, **arguments)

    class Counting(Meters):
        def start(self):
            calls.append("start")
            super().start()

        def stop(self):
            calls.append("stop")
            return super().stop()

    monkeypatch.setattr(unit_module, "decode_ours", fragile)
    monkeypatch.setattr(meters_module, "Meters", Counting)
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
    done = start({"methods": [{"kind": "plain"}, chain], "samplings": [{"temperature": 0}]})
    assert not done.failures
    assert calls == ["start", "stop"] * 4
    found = load_run(done.folder)
    mine, other = (found.prompts.filter(method=name) for name in ("chain 2", "plain"))
    assert all("no room for it" in why for why in mine["alone_error"])
    assert mine["error"].null_count() == len(mine) == 2
    assert mine["alone_s"].null_count() == mine["rss_bytes"].null_count() == 2
    assert other["alone_error"].null_count() == 2
    assert other["alone_s"].null_count() == other["rss_bytes"].null_count() == 0
    table = details.errors(found).tables[0]
    assert [row[0].text for row in table.rows] == ["chain 2"] * 2
    assert table.rows[0][-1].text.startswith("decoding alone, with meters: ")
