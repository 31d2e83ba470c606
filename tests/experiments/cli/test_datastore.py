"""`treespec datastore`: builds a file from texts, describes it, and rejects bad input with exit code 2."""

import json
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from treespec.draft import Datastore
from treespec.experiments.cli.main import app
from treespec.models.outline import outline_pair


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
    assert data.pop("left_out") == {"copies_of_held_out": 0, "unreadable": 1}
    assert (data["texts"], data["bytes"]) == (2, (tmp_path / "x").stat().st_size)
    store = Datastore(tmp_path / "x")
    assert store.about["tokens"] == data["tokens"] > 15
    assert json.loads(call("info", tmp_path / "x", "--json").stdout) == data
    said = call("info", tmp_path / "x").stdout
    assert f"{data['tokens']} tokens of 2 texts" in said


def test_at_most_so_many_tokens(texts, tmp_path):
    done = call("build", tmp_path / "x", texts / "a.py", "--most-tokens", 3, "--json")
    assert json.loads(done.stdout)["tokens"] == 4  # three, and an end


def held_out():
    lines = (files("treespec") / "embedded" / "held_out.jsonl").read_text().splitlines()
    return {row["file"]: row["text"] for row in map(json.loads, lines)}


def test_copies_of_held_out_files_are_left_out(tmp_path):
    """Under any name, whole or in part: no 16 consecutive tokens of them are found."""
    own = "\n".join(f"value_{i} = {i} * offset_{i}" for i in range(400))
    texts, given = tmp_path / "texts", held_out()
    texts.mkdir()
    (texts / "heapq.py").write_text(given["heapq.py"])
    (texts / "sharer.py").write_text(own + given["multiprocessing/resource_sharer.py"])
    (texts / "random.py").write_text("\n".join(given["random.py"].splitlines()[:40]))
    (texts / "wave.py").write_text(own)  # the name alone says nothing
    done = call("build", tmp_path / "x", texts, texts / "heapq.py", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["texts"], data["left_out"]["copies_of_held_out"]) == (1, 3)
    store, tokenizer = Datastore(tmp_path / "x"), outline_pair("embedded", "none").tokenizer
    for name in ("heapq.py", "multiprocessing/resource_sharer.py", "random.py"):
        ids = tokenizer.encode(given[name], add_special_tokens=False, verbose=False)
        assert not any(store.find(ids[i : i + 16]) for i in range(len(ids) - 15))
    assert "left out 3 copies of held-out files" in call("build", tmp_path / "z", texts).stdout


def test_bad_input(texts, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").touch()
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(2**25 + 1)
    (tmp_path / "heapq.py").write_text(held_out()["heapq.py"])
    for said, arguments in {
        "already exists": ["build", tmp_path / "there", texts],
        "No such file": ["build", tmp_path / "x", tmp_path / "none"],
        "none: No such file": ["build", tmp_path / "x", texts, tmp_path / "none"],
        "more than the 33,554,432 ": ["build", tmp_path / "x", texts, tmp_path / "large.py"],
        "latin.txt: not UTF-8": ["build", tmp_path / "x", texts, texts / "latin.txt"],
        "nothing to store: left out 1 copy": ["build", tmp_path / "x", tmp_path / "heapq.py"],
        "no file in it ends in": ["build", tmp_path / "x", tmp_path / "empty"],
        "not UTF-8": ["build", tmp_path / "x", texts / "latin.txt"],
        "--most-tokens = 0": ["build", tmp_path / "x", texts, "--most-tokens", 0],
        "nowhere": ["build", tmp_path / "x", texts, "--model", tmp_path / "nowhere"],
        "not a datastore": ["info", texts / "a.py"],
        "No such file or": ["info", tmp_path / "none"],
    }.items():
        done = call(*arguments)
        assert done.exit_code == 2, (said, done.output)
        assert said in done.stderr
        assert not (tmp_path / "x").exists()
