"""Damaged manifests, rows and options: exit code 2, and one message that names the file and the key."""

import copy
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
from treespec.experiments.errors import RunFolderError, SweepError
from treespec.experiments.records.loading import read_manifest
from treespec.experiments.report.run import load_run
from treespec.experiments.sweep.attempts import outcome_of, read_attempts
from treespec.experiments.sweep.folder import read_manifest as read_sweep
from treespec.tree import TreeShape

FOREIGN = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Warning)\b|Traceback|Input should|Expecting|NoneType|has no attribute|"
    r"object is not|not subscriptable|<class|invalid literal|positional argument"
)
METHODS = [
    SyntheticMethod("plain", "plain"),
    SyntheticMethod("assisted", "assisted", TreeShape.chain(4), (0.6,), (6.0, 23.0, 1.5, 1.0)),
    SyntheticMethod("kary", "tree", TreeShape.kary(2, 2), (0.6, 0.2), (3.0, 23.0, 1.5, 1.0)),
]
NEVER = [-1, [], 1e308, [None], {"a": 1}, True]
"""Replacements for a value; each key accepts some of them at most."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "good", METHODS, prompts=2, new_tokens=8)


@pytest.fixture
def bad(run, tmp_path):
    return shutil.copytree(run, tmp_path / "bad")


def places(data, path=()):
    """Every key, and the first two entries of every list."""
    if path:
        yield path
    pairs = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data[:2])
        if isinstance(data, list)
        else ()
    )
    for key, value in pairs:
        yield from places(value, (*path, key))


def changed(data, path, value):
    data = copy.deepcopy(data)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


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


def test_every_key_of_a_manifest(bad):
    """Some 800 damaged manifests: refused with file and key, or harmless."""
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    count = 0
    for place in places(manifest):
        refusals = 0
        for value in NEVER:
            path.write_text(json.dumps(changed(manifest, place, value)))
            refusals += refused(lambda: read_manifest(bad), str(path)) is not None
            count += 1
        if place[0] not in ("config", "tuning", "sessions") and place[-1] not in (
            "triton", "context", "top_k", "top_p", "min_p", "prompts_hash", "name",
        ):  # fmt: skip
            assert refusals >= 3, place
    assert count > 500


@pytest.mark.parametrize("key", ["config", "methods", "samplings", "models", "hardware", "created"])
def test_keys_that_are_missing(bad, key):
    path = bad / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest[key]
    path.write_text(json.dumps(manifest))
    assert refused(lambda: load_run(bad), f"{path} is damaged", f"{key} is missing")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{", b"hello", b'"x"', bytes(range(128, 256)), b"[" * 100_000]
)
@pytest.mark.parametrize("command", ["report", "diff", "estimate"])
def test_manifests_that_are_none(run, bad, command, content):
    (bad / "manifest.json").write_bytes(content)
    rest = {"diff": [run], "estimate": ["--method", "kary", "--sampling", "T=1"]}.get(command, [])
    done = CliRunner().invoke(app, [command, os.fspath(bad), *map(os.fspath, rest)])
    assert done.exit_code == 2, done.output
    assert str(bad / "manifest.json") in done.stderr
    assert not FOREIGN.search(done.output), done.output


NUMBERS = (
    "decode_s",
    "total_s",
    "new_tokens",
    "steps",
    "prompt_tokens",
    "size",
    "kept",
    "draft_s",
    "depth",
)


@pytest.mark.parametrize("table", ["prompts", "steps"])
@pytest.mark.parametrize("column", NUMBERS)
@pytest.mark.parametrize("value", [None, -1, float("nan"), float("inf"), 1e308])
def test_impossible_numbers_in_rows(bad, table, column, value):
    path = bad / f"{table}.parquet"
    frame = pl.read_parquet(path)
    whole = column not in frame.columns or frame.schema[column] == pl.Int64
    if column not in frame.columns or (whole and isinstance(value, float)):
        return
    if value is None and column == "draft_s":
        return  # the methods of transformers have none
    new = pl.when(pl.int_range(pl.len()) == 1).then(pl.lit(value, dtype=frame.schema[column]))
    frame.with_columns(new.otherwise(pl.col(column)).alias(column)).write_parquet(path)
    assert refused(lambda: load_run(bad), str(bad / table), column)


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
    pl.concat([frame, frame]).write_parquet(path)
    assert refused(lambda: load_run(bad), str(bad / table), "twice")
    frame.with_columns(pl.lit("nobody").alias("method")).write_parquet(path)
    assert refused(lambda: load_run(bad), str(bad / table), "nobody", "none of the methods")


@pytest.mark.parametrize("table", ["prompts", "steps"])
def test_lines_of_an_unfinished_run(tmp_path, table):
    folder = write_run(tmp_path / "run", METHODS, prompts=2, new_tokens=8, finished=False)
    path = folder / f"{table}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[1])
    refusals = 0
    for key in row:
        for value in (*NEVER, None):
            new = json.dumps(row | {key: value}).encode() + b"\n"
            path.write_bytes(b"".join([lines[0], new, *lines[2:]]))
            refusals += refused(lambda: load_run(folder), str(folder / table)) is not None
    assert refusals > 5 * len(row)


SWEEP = {
    "schema_version": 1, "name": "s", "grid": {"seed": [0]}, "base": {}, "grid_hash": "x", "versions": {},
    "jobs": [{"name": "seed=0", "values": {"seed": 0}, "config_hash": "y"}], "finished": None,
    "sessions": [],
}  # fmt: skip


def test_every_key_of_a_sweep(tmp_path):
    path = tmp_path / "sweep.json"
    for place in places(SWEEP):
        for value in (*NEVER, 99):
            path.write_text(json.dumps(changed(SWEEP, place, value)))
            refused(lambda: read_sweep(tmp_path), str(path))
    for key in ("grid", "base", "jobs", "versions", "grid_hash", "schema_version"):
        path.write_text(json.dumps({k: v for k, v in SWEEP.items() if k != key}))
        with pytest.raises(SweepError, match=f"{key} is missing"):
            read_sweep(tmp_path)


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


WORDS = [
    "",
    "x",
    "-1",
    "1.5",
    "nan",
    "[]",
    "{}",
    "=",
    ",",
    "é",
    "99999999999999999999",
    "missing/x",
]
LINES = [
    "run {}", "sweep {}", "report {}", "diff {} {}", "search {} --size 4", "search 0.6 --size {}",
    "search 0.6 --to {}", "search 0.6 --latency {}", "search 0.6 --depth {}", "search 0.6 --batch {}",
    "export {} --to eagle", "export [[0]] --from medusa --to {}", "export [[0]] --from {} --to eagle",
    "export {} --from sequoia --to eagle", "replay {} --shapes chain:2", "estimate {}",
    "profile {} --out o.json", "profile missing --out o.json --sizes {}", "trace {} --out o.npz",
    "check-lossless smoke {} --samples 0", "check-lossless smoke a.b.c={} --samples 0",
    "check-lossless smoke models={} --samples 0", "check-lossless smoke prompts={} --samples 0",
    "check-lossless smoke methods={} --samples 0", "check-lossless smoke samplings={} --samples 0",
    "sweep smoke sweep.seed={} --workers 0", "sweep smoke --executor {}", "sweep smoke --slurm {}",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_nonsense_for_every_option(tmp_path, monkeypatch, line):
    """None of these calls is valid, whatever the word, and none reaches a model."""
    monkeypatch.chdir(tmp_path)
    for word in WORDS:
        arguments = [part.replace("{}", word) for part in line.split(" ")]
        done = CliRunner().invoke(app, arguments)
        right = done.exit_code == 0 and line.startswith(
            "search"
        )  # such as --size 1.5: refused, 0.6: not
        assert done.exit_code == 2 or right, (arguments, done.output)
        assert not FOREIGN.search(done.output), (arguments, done.output)


@pytest.mark.parametrize(
    "shape", ["chain:", "chain:x", "chain:1x2", "kary:2", "chains:-1", "expansion:", "kary:axb"]
)
def test_trees_that_are_typed_wrong(tmp_path, shape):
    done = CliRunner().invoke(app, ["replay", "t.npz", "--shapes", shape])
    assert done.exit_code == 2
    assert "is not a tree" in done.stderr
    assert not FOREIGN.search(done.output), done.output
