"""`treespec configs` and `treespec init`."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.config.file import load_config
from treespec.experiments.config.files import shipped
from treespec.experiments.config.reference import config_schema


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_one_config_as_it_stands():
    done = call("configs", "tree_vs_chain")
    assert done.exit_code == 0
    assert done.stdout == shipped()["tree_vs_chain"].read_text(encoding="utf-8")
    data = json.loads(call("configs", "tree_vs_chain", "--json").stdout)
    assert data["config"] == yaml.safe_load(done.stdout)


def test_the_schema():
    done = call("configs", "--schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == config_schema()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (["configs", "smok"], "did you mean 'smoke'?"),
        (["configs", "smoke", "--schema"], "give no NAME and no --json"),
        (["configs", "--schema", "--json"], "give no NAME and no --json"),
    ],
)
def test_wrong_calls(line, part):
    done = call(*line)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert part in done.stderr


def test_init_writes_a_config_to_begin_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("init", "mine.yaml")
    assert done.exit_code == 0, done.output
    assert "treespec run mine.yaml" in done.stdout
    assert load_config("mine.yaml").name == "mine"
    assert "\nalone: 1" in (tmp_path / "mine.yaml").read_text()
    assert (tmp_path / "mine.yaml").read_text().startswith("# mine: ")


def test_init_leaves_what_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("kept")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    for name, part in {
        "mine.yaml": "mine.yaml already exists",
        "link.yaml": "link.yaml already exists",
        ".": "already exists",
        "missing/mine.yaml": "there is no folder missing",
        "mine.yaml/x": "there is no folder mine.yaml",
        "two\nlines.yaml": "without control characters",
        "x" * 250 + ".yaml": "at most 200 bytes",
    }.items():
        done = call("init", name)
        assert done.exit_code == 2, done.output
        assert part in done.stderr
        assert done.stdout == ""
    assert (tmp_path / "mine.yaml").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "mine.yaml"]
