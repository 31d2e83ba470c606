"""`--json`: exactly one object on stdout, with stable keys and the numbers of the tables."""

import json

import numpy as np
import pytest
import yaml
from run_folders.folders import write_run
from typer.testing import CliRunner

from treespec.experiments.cli.common import JSON_VERSION, json_text
from treespec.experiments.cli.main import app
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.run import load_run
from treespec.search.intervals import Interval


def printed(*arguments, code=0):
    """The JSON object that a command prints."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(done.stdout, parse_constant=refuse)
    assert next(iter(data)) == "version"
    assert data["version"] == JSON_VERSION
    return data


@pytest.fixture(autouse=True)
def _no_html(monkeypatch):
    """Skip figures, which take seconds and have their own tests."""
    monkeypatch.setattr(
        "treespec.experiments.report.page.write_report", lambda run: run.folder / "report.html"
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", spread=0.2, jitter=0.05)


def test_report_has_the_numbers_of_the_table(run_folder):
    data = printed("report", run_folder, "--json")
    run = load_run(run_folder)
    assert data["folder"] == str(run_folder)
    assert data["report"] == str(run_folder / "report.html")
    assert {"name", "finished", "samplings"} <= set(data)
    assert [own["sampling"] for own in data["samplings"]] == ["T=0", "T=1"]
    for found, summary in zip(data["samplings"], run.summaries, strict=True):
        assert {"baseline", "prompts", "attempted", "failed", "verdict"} <= set(found)
        assert found["verdict"] == list(run.verdicts[summary.sampling])
        assert len(found["methods"]) == len(summary.rows)
        for method, row in zip(found["methods"], summary.rows, strict=True):
            assert {
                "method", "kind", "group", "law", "rule", "parents", "lossless", "tokens_per_step",
                "accepted_per_step", "tokens_per_second", "speedup", "step_ms", "stage_ms", "wasted",
                "equality", "errors", "among_fastest",
            } <= set(method)  # fmt: skip
            assert method["method"] == row.method.name
            assert method["tokens_per_step"]["estimate"] == row.tokens_per_step.estimate
            assert method["speedup"]["low"] == row.speedup.low
        duel = found["comparisons"][0]
        assert set(duel) >= {"left", "right", "ratio", "prompts", "winner"}
        assert duel["left"]["family"] == "the best tree"
        assert duel["ratio"]["low"] < duel["ratio"]["estimate"] < duel["ratio"]["high"]


def test_plain_data():
    found = plain_data(
        {1: np.float64("inf"), "b": np.arange(2), "c": Interval(1.0, float("nan"), 2.0), "d": {3}}
    )
    nothing = {"estimate": 1.0, "low": None, "high": 2.0}
    assert found == {"1": None, "b": [0, 1], "c": nothing, "d": [3]}
    assert json.loads(json_text({"a": np.int64(3), "b": np.bool_(True)})) == {
        "version": JSON_VERSION, "a": 3, "b": True,
    }  # fmt: skip


def test_run_prints_its_summary(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = [{"kind": "plain"}, {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}]
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings | {"methods": methods}))
    data = printed("run", "exp.yaml", "--json")
    assert data["already_finished"] is False
    assert data["failures"] == []
    assert data["finished"]
    assert [m["method"] for m in data["samplings"][0]["methods"]] == ["plain", "chain 2"]
    again = printed("run", "exp.yaml", "--json", "-q")
    assert again["already_finished"] is True
    assert again["samplings"] == data["samplings"]


def test_run_prints_what_failed(settings, tmp_path, monkeypatch):
    from treespec.experiments.run import unit

    def broken(*arguments, **more):
        raise RuntimeError("boom")

    monkeypatch.setattr(unit, "generate_plain", broken)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(
        yaml.safe_dump(settings | {"methods": [{"kind": "generate"}]})
    )
    data = printed("run", "exp.yaml", "--json", code=1)
    assert data["samplings"] == []
    assert data["name"] == "tiny"
    assert data["finished"] is not None
    assert len(data["failures"]) == 4
    assert data["failures"][0] == {
        "prompt": 0, "sampling": "T=0", "method": "generate", "error": "an error inside the decoding: boom",
    }  # fmt: skip
