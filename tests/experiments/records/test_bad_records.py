"""Damaged manifests, rows and options: exit code 2, and one message that names the file and the key."""

import json
import os
import re
import shutil

import polars as pl
import pytest
from run_folders.folders import SyntheticMethod, write_run
from typer.testing import CliRunner

from treespec.errors import TreespecError
from treespec.experiments.cli.main import app
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.report.run import load_run
from treespec.experiments.sweep.attempts import outcome_of, read_attempts
from treespec.tree import TreeShape

FOREIGN = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Warning)\b|Traceback|Input should|NoneType|has no attribute|"
    r"object is not|not subscriptable|<class|invalid literal|positional argument"
)
METHODS = [
    SyntheticMethod("plain", "plain"),
    SyntheticMethod("assisted", "assisted", TreeShape.chain(4), (0.6,), (6.0, 23.0, 1.5, 1.0)),
    SyntheticMethod("kary", "tree", TreeShape.kary(2, 2), (0.6, 0.2), (3.0, 23.0, 1.5, 1.0)),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "good", METHODS, prompts=2, new_tokens=8)


@pytest.fixture
def bad(run, tmp_path):
    return shutil.copytree(run, tmp_path / "bad")


def refused(call, *names):
    """The message; None if the input is accepted."""
    try:
        call()
    except TreespecError as error:
        text = str(error)
        assert not FOREIGN.search(text), text
        assert all(name in text for name in names), text
        return text
    return None


@pytest.mark.parametrize("key", ["config", "methods", "samplings", "models", "hardware", "created"])
def test_keys_that_are_missing(bad, key):
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[key]
    path.write_text(json.dumps(manifest))
    assert refused(lambda: load_run(bad), f"{path} is damaged", f"{key} is missing")


@pytest.mark.parametrize("key", ["methods", "sessions", "together", "twins"])
def test_keys_of_another_type(bad, key):
    path = bad / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "x"}))
    assert refused(lambda: load_run(bad), f"{path} is damaged", f"{key} = 'x'")
    assert refused(RunFolder(bad).manifest, f"{path} is damaged", "start over with --fresh")


def test_a_run_without_what_only_a_resume_needs(bad):
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    for key in ("sessions", "together", "twins", "groups"):
        manifest.pop(key, None)
    for method in manifest["methods"]:
        method.pop("size", None)
        method.pop("depth", None)
    path.write_text(json.dumps(manifest))
    assert load_run(bad).findings
    assert refused(RunFolder(bad).manifest, f"{path} is damaged", "is missing")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", bytes(range(128, 256))])
@pytest.mark.parametrize("command", ["report", "diff"])
def test_manifests_that_are_none(run, bad, command, content):
    (bad / "manifest.json").write_bytes(content)
    rest = [run] if command == "diff" else []
    done = CliRunner().invoke(app, [command, os.fspath(bad), *map(os.fspath, rest)])
    assert done.exit_code == 2, done.output
    assert str(bad / "manifest.json") in done.stderr
    assert not FOREIGN.search(done.output), done.output


@pytest.mark.parametrize("table", ["prompts", "steps"])
def test_tables_of_something_else(bad, table):
    path = bad / f"{table}.parquet"
    frame, whole = pl.read_parquet(path), path.read_bytes()
    for content in (b"", b"PAR1", b"hello", whole[:50], whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        assert refused(lambda: load_run(bad), str(path))
    for column in frame.columns:
        if column != "repeat":
            frame.drop(column).write_parquet(path)
            refused(lambda: load_run(bad), str(path))
        frame.with_columns(pl.lit(value=b"x").alias(column)).write_parquet(path)
        assert refused(lambda: load_run(bad), str(path), column)


def test_attempts_and_outcomes_of_jobs(tmp_path):
    path = tmp_path / "attempts" / "001.json"
    path.parent.mkdir()
    for content in ("", "[]", "null", "3", "{}", '{"error": 3}', '{"error": null, "workers": "x"}'):
        path.write_text(content)
        assert refused(lambda: read_attempts(tmp_path), str(path))
    path.unlink()
    path = tmp_path / "run" / "manifest.json"
    path.parent.mkdir()
    for content in ("", "[]", "3", '{"finished": 3}', '{"finished": "x", "errors": "y"}'):
        path.write_text(content)
        assert refused(lambda: outcome_of(tmp_path), str(path))


def test_damaged_measurements_of_a_run(bad):
    from treespec.experiments.records.measured import stamped

    for content in ("", "[]", "{}", '{"config_hash": 3}', '{"config_hash": "x", "prefix": "y"}'):
        (bad / "config.json").write_text(content)
        with pytest.raises(RunFolderError, match=r"config\.json is damaged"):
            stamped(bad / "config.json")


def test_a_key_that_no_form_names_is_missing(bad):
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["models"]["target"]["name"]
    path.write_text(json.dumps(manifest))
    done = CliRunner().invoke(app, ["report", os.fspath(bad)])
    assert done.exit_code == 2, done.output
    assert f"error: {path} is damaged: 'name' is missing" in done.stderr


def test_integers_that_no_column_holds(bad):
    log = bad / "prompts.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    row = json.loads(lines[1]) | {"seed": 10**24}
    log.write_text("".join([lines[0], json.dumps(row) + "\n", *lines[2:]]))
    (bad / "prompts.parquet").unlink()
    assert refused(lambda: load_run(bad), "prompts.jsonl, line 2", "seed")


def test_rows_of_a_method_that_the_manifest_lacks(bad):
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["methods"] = manifest["methods"][1:]
    path.write_text(json.dumps(manifest))
    assert refused(lambda: load_run(bad), f"{path} is damaged", "lacks the method 'plain'")
