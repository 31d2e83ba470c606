"""Results that a start would replace without `--fresh`: it is refused, and nothing is changed."""

import json

import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.manifest import config_data, config_hash
from treespec.experiments.records.measured import STAMP


@pytest.fixture
def folder(tmp_path, config):
    """A finished run of this config."""
    path = write_run(tmp_path / "run", [SyntheticMethod("plain", "plain")], prompts=2)
    with RunFolder(path) as run:
        data = run.manifest() | {"config": config_data(config), "config_hash": config_hash(config)}
        run.keep_manifest(data)
    return path


def refused(path, config, *names):
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with RunFolder(path) as run, pytest.raises(RunFolderError) as error:
        run.require_same(config)
    assert all(str(path / name) in str(error.value) for name in names)
    assert "--fresh" in str(error.value)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def start_of(path):
    """The manifest of a start that has not got anywhere, as `HeldFolder` writes it."""
    data = {"schema_version": 3, "config_hash": None, "finished": None, "folder_id": "0" * 32}
    (path / "manifest.json").write_text(json.dumps(data))


def test_a_whole_run_is_taken_for_what_it_is(folder, config):
    with RunFolder(folder) as run:
        run.require_same(config)


@pytest.mark.parametrize("kept", ["prompts.jsonl", "steps.jsonl", "prompts.parquet"])
def test_rows_of_which_no_manifest_tells(folder, config, kept):
    for path in folder.glob("*.*"):
        if path.name not in (kept, ".lock"):
            path.unlink()
    start_of(folder)
    refused(folder, config, kept, "manifest.json")
    (folder / kept).unlink()
    (folder / "prompts.jsonl").touch()  # what a start leaves before its manifest is complete
    with RunFolder(folder) as run:
        run.require_same(config)


@pytest.mark.parametrize("lost", ["prompts", "steps"])
def test_a_table_whose_log_is_gone(folder, config, lost):
    (folder / f"{lost}.jsonl").unlink()
    refused(folder, config, f"{lost}.parquet", f"{lost}.jsonl")
    with RunFolder(folder) as run:  # `--fresh`
        run.clear()
        run.require_same(config)


def test_measurements_of_another_config(tmp_path, config):
    with RunFolder(tmp_path) as run:
        for name, content in ((STAMP, {"config_hash": "other", "prefix": 1}), ("latency.json", {})):
            run.keep(run.search / name, json.dumps(content))
    refused(tmp_path, config, "search", f"search/{STAMP}")
    (tmp_path / "search" / STAMP).write_text(
        json.dumps({"config_hash": config_hash(config), "prefix": 1})
    )
    with RunFolder(tmp_path) as run:
        run.require_same(config)
