"""`treespec skip-set search`: writes a file that a config can name; rejects bad input with exit code 2."""

import json

from typer.testing import CliRunner

from treespec.draft.skip_set import SkipSet
from treespec.experiments.cli.main import app


def call(*arguments):
    return CliRunner().invoke(app, ["skip-set", "search", *map(str, arguments)])


def test_searched_and_written(tmp_path):
    out = tmp_path / "skip.json"
    done = call(out, "--size", 2, "--tokens", 24, "--most-texts", 2, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["layers"], data["tokens"], len(data["skip"])) == (5, 48, 2)
    assert 0 < data["acceptance"] < 1
    assert SkipSet.load(out).skip == tuple(data["skip"])
    assert data["target"].startswith("LlamaForCausalLM of ")
    text = tmp_path / "text.md"
    text.write_text("A short text of a few words.\n")
    again = call(tmp_path / "other.json", text, "--size", 1)
    assert "the acceptance rate is" in again.stdout
    assert "sets tried" in again.stderr


def test_bad_input(tmp_path):
    empty = tmp_path / "empty.md"
    empty.write_text("")
    for said, arguments in {
        "already exists": [empty],
        "--size = 0: must be at least 1": [tmp_path / "x", "--size", 0],
        "--size = 10: must be at most 9": [tmp_path / "x", "--size", 10],
        "the texts have no tokens": [tmp_path / "x", empty],
        "No such file": [tmp_path / "x", tmp_path / "none.md"],
        "--most-sets = 2: must be at least 10": [tmp_path / "x", "--most-sets", 2],
    }.items():
        done = call(*arguments)
        assert done.exit_code == 2, done.output
        assert said in done.stderr
        assert not (tmp_path / "x").exists()
