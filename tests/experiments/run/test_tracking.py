"""Trackers, with a stand-in module for trackio and wandb."""

import sys
from types import ModuleType

import pytest
from run_folders.folders import write_run

from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.run import load_run
from treespec.experiments.run.tracking import open_tracker, row_figures, summary_figures


@pytest.fixture
def fake(monkeypatch):
    """A module `trackio` that records its calls, and fails at those named in `fail`."""
    module = ModuleType("trackio")
    module.calls, module.fail = [], set()

    def call(name):
        def called(*arguments, **more):
            module.calls.append((name, arguments, more))
            if name in module.fail:
                raise ConnectionError("no network")

        return called

    for name in ("init", "log", "finish"):
        setattr(module, name, call(name))
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


SMALL = {
    "methods": [{"kind": "plain"}, {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}],
    "samplings": [{"temperature": 1}],
    "tracker": "trackio",
}


@pytest.fixture
def start(settings, loaded_pair, tmp_path):
    def start(**changes):
        config = Config.model_validate(settings | SMALL | changes)
        return run(config, folder=tmp_path / "run", load=lambda models: loaded_pair)

    return start


def test_a_run_is_logged_from_config_to_summary(fake, start):
    result = start()
    names = [name for name, _, _ in fake.calls]
    assert names == ["init", "log", "log", "log", "finish"]
    _, _, opened = fake.calls[0]
    assert opened["project"] == "treespec"
    assert opened["name"] == "tiny"
    assert opened["config"]["config"]["max_new_tokens"] == 6
    assert opened["config"]["hardware"]["threads"] >= 1
    (unit,) = fake.calls[1][1]
    assert unit["prompt"] == 0
    row = load_run(result.folder).prompts.row(0, named=True)
    rate = row["new_tokens"] / row["decode_s"]
    assert unit[f"T=1/{row['method']}/tokens_per_second"] == pytest.approx(rate)
    (summary,) = fake.calls[3][1]
    assert summary["summary/T=1/plain/speedup"] == 1.0
    assert summary == summary_figures(load_run(result.folder))


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_a_tracker_that_fails_does_not_stop_the_run(fake, start, call):
    fake.fail = {call}
    result = start()
    assert load_run(result.folder).finished
    assert [name for name, _, _ in fake.calls].count(call) == 1  # and is not called again


def test_a_tracker_changes_nothing_of_the_run(fake, start):
    first = start(tracker=None)
    assert fake.calls == []
    assert start().already_finished
    assert first.folder.exists()


def test_an_interrupted_run_is_closed_there(fake, start, monkeypatch):
    from treespec.experiments.run import runner

    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_unit", stop)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert [name for name, _, _ in fake.calls] == ["init", "finish"]


def test_a_package_that_is_missing_is_said_before_anything_runs(start, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        start(tracker="wandb")
    assert not (tmp_path / "run").exists()


def test_failed_rows_and_bounds(tmp_path):
    from run_folders.folders import SyntheticMethod

    bad = SyntheticMethod("bad", "plain", errors=frozenset({0}))
    methods = [SyntheticMethod("plain", "plain"), bad]
    found = load_run(write_run(tmp_path / "run", methods, prompts=5, new_tokens=8))
    from treespec.experiments.records.rows import PromptRow, read_lines

    rows = read_lines(tmp_path / "run" / "prompts.jsonl", PromptRow)
    assert row_figures(rows[:2])["T=0/bad/failed"] == 1
    figures = summary_figures(found)
    assert figures["summary/T=0/plain/tokens_per_second_low"] > 0


def test_no_tracker_by_default():
    tracker = open_tracker(None, print)
    tracker.begin({})
    tracker.unit([])
    tracker.end(None)
