"""`treespec datastore`: texts become a file, which says what it is; bad input ends with exit code 2."""

import json

import pytest
from typer.testing import CliRunner

from treespec.draft import Datastore
from treespec.experiments.cli.main import app


def call(*arguments):
    return CliRunner().invoke(app, ["datastore", *map(str, arguments)])


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.py").write_text("for i in range(10):\n    print(i)\n")
    (folder / "deeper" / "b.md").write_text("A page.\n")
    (folder / "c.bin").write_bytes(b"\xff\xfe")
    (folder / "latin.txt").write_bytes(b"\xe9t\xe9")  # no UTF-8: left out
    return folder


def test_built_and_described(texts, tmp_path):
    done = call("build", tmp_path / "x", texts, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["texts"], data["bytes"]) == (2, (tmp_path / "x").stat().st_size)
    store = Datastore(tmp_path / "x")
    assert store.about["tokens"] == data["tokens"] > 15
    assert json.loads(call("info", tmp_path / "x", "--json").stdout) == data
    said = call("info", tmp_path / "x").stdout
    assert f"{data['tokens']} tokens of 2 texts" in said


def test_at_most_so_many_tokens(texts, tmp_path):
    done = call("build", tmp_path / "x", texts / "a.py", "--most-tokens", 3, "--json")
    assert json.loads(done.stdout)["tokens"] == 4  # three, and an end


def test_bad_input(texts, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").touch()
    for said, arguments in {
        "is there already": ["build", tmp_path / "there", texts],
        "No such file": ["build", tmp_path / "x", tmp_path / "none"],
        "no file in it ends in": ["build", tmp_path / "x", tmp_path / "empty"],
        "not UTF-8": ["build", tmp_path / "x", texts / "latin.txt"],
        "--most-tokens = 0": ["build", tmp_path / "x", texts, "--most-tokens", 0],
        "nowhere": ["build", tmp_path / "x", texts, "--model", tmp_path / "nowhere"],
        "no datastore": ["info", texts / "a.py"],
        "none: No such file": ["info", tmp_path / "none"],
    }.items():
        done = call(*arguments)
        assert done.exit_code == 2, (said, done.output)
        assert said in done.stderr
        assert not (tmp_path / "x").exists()
