"""`treespec train check`: trained drafts are read from their files, run, and compared with replays."""

import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.report.terminal import print_finding
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.check_trained import Checked, finding
from treespec.experiments.training.metric_check import Comparison, Difference
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.training_run import TrainingRun

SETTINGS = (
    *("tokens=256", "length=64", "batch_tokens=128", "vocabulary=512", "texts.files=4"),
    *("held_out.count=2", "metric.positions=16", "metric.every=256"),
    "drafts=[{family: eagle3, inner: 32, boundaries: [2, 3, 4], steps: 2}, {family: medusa, seed: 7}, "
    "{family: model, inner: 32}]",
)


def call(*arguments: object):
    return CliRunner().invoke(app, ["train", "check", *map(str, arguments)])


def test_trained_drafts_do_what_was_replayed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    refused = call(tmp_path / "other")
    assert refused.exit_code == 2
    assert "no folder of a training" in refused.output
    trained = TrainingRun(
        load_training("embedded", SETTINGS), tmp_path / "out", Reporter(None)
    ).run()
    done = call(tmp_path / "out", "--json", "-q")
    assert done.exit_code == 0, done.output
    trees = json.loads(done.stdout)["trees"]
    assert len(trees) == 3 * 4
    for tree in trees:
        (end,) = (one.last for one in trained if one.label == tree["draft"])
        assert tree["differences"] == []
        assert tree["live"] == tree["replayed"] == end[f"tokens_per_step_{tree['tree']}"]
    refused = call(tmp_path / "out", "--only", "block")
    assert refused.exit_code == 2
    assert "no trained draft 'block'" in refused.output


def test_a_step_that_differs_is_shown_with_its_gap() -> None:
    one = Difference(
        "chain_4", text=3, position=17, replayed=2, live=None, cause="draft", gap=1.5e-6
    )
    console = Console(width=100, record=True)
    print_finding(
        finding([Checked("eagle3", Comparison("chain_4", 2.0, 1.9, 40, (one,)))]), console
    )
    text = console.export_text()
    for said in ("1.9000", "17", "no step", "1.5e-06", "how near the tie is"):
        assert said in text
    print_finding(finding([Checked("eagle3", Comparison("chain_4", 2.0, 2.0, 40, ()))]), console)
    assert "every step of the live runs is as it was replayed" in console.export_text()
