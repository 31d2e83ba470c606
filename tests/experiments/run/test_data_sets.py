"""Prompts of a data set: from a folder, or (faked here) from the hub."""

import json
import sys
from types import SimpleNamespace

import pytest
import yaml
from pydantic import TypeAdapter
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.config.schema import Prompts
from treespec.experiments.errors import PromptError
from treespec.experiments.run.prompts import read_prompts

datasets = pytest.importorskip("datasets")

ROWS = [
    {"question_id": 81 + i, "category": "ab"[i % 2], "ask": ["ab" * 4, "and then"], "n": i}
    for i in range(5)
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "test.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (path / "train.jsonl").write_text(json.dumps(ROWS[0]))
    return path


def source(path, **more):
    data = {"kind": "hf_dataset", "path": str(path), "split": "test", "field": "ask"} | more
    return TypeAdapter(Prompts).validate_python(data)


def test_a_split_of_a_folder_is_read(folder):
    prompts = read_prompts(source(folder))
    assert [(p.id, p.category, p.text) for p in prompts[:2]] == [
        ("81", "a", "abababab"),
        ("82", "b", "abababab"),
    ]
    assert prompts[1].where == f"{folder}, test, row 2"
    assert len(prompts) == 5
    assert len(read_prompts(source(folder, split="test[1:3]"))) == 2
    assert len(read_prompts(source(folder, count=2), more=1)) == 3


def test_what_was_read_of_a_folder_is_pinned_by_its_texts(folder):
    (before,) = {prompt.revision for prompt in read_prompts(source(folder))}
    assert before.startswith("sha256:")
    (folder / "test.jsonl").write_text(json.dumps(ROWS[0] | {"ask": ["other"]}))
    (after,) = {prompt.revision for prompt in read_prompts(source(folder))}
    assert after != before


def test_the_commit_of_the_hub_is_kept(folder, monkeypatch):
    real = datasets.load_dataset_builder
    asked = []

    def builder(path, subset, revision):
        asked.append((path, subset, revision))
        made = real(str(folder))
        return SimpleNamespace(
            download_and_prepare=made.download_and_prepare,
            as_dataset=made.as_dataset,
            hash="0123abcd",
        )

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    prompts = read_prompts(source("who/what", revision="main", subset="en"))
    assert {prompt.revision for prompt in prompts} == {"0123abcd"}
    assert asked == [("who/what", "en", "main")]


def test_the_manifest_says_which_revision_was_read(folder, start):
    prompts = {"kind": "hf_dataset", "path": str(folder), "split": "test", "field": "ask"}
    changes = {
        "prompts": prompts | {"count": 2},
        "methods": [{"kind": "plain"}],
        "samplings": [{"temperature": 0.0}],
    }
    manifest = json.loads((start(changes).folder / "manifest.json").read_text())
    first = read_prompts(source(folder, count=2), more=0)[0]
    assert manifest["prompts_revision"] == first.revision


WRONG = {
    "a split that is not there": ({"split": "dev"}, ["'dev'", "train", "test"]),
    "a split that is no split": ({"split": "test["}, ["'test['"]),
    "an empty part": ({"split": "test[:0]"}, ["no data"]),
    "a field that is not there": ({"field": "prompt"}, ["prompts.field = 'prompt'", "ask, n"]),
    "no text": ({"field": "n"}, ["row 1", "'n' holds 0"]),
    "another subset": ({"subset": "de"}, ["'de' not found"]),
    "a revision of a folder": ({"revision": "main"}, ["is a folder", "revision"]),
    "files of several forms": ({"path": "mixed"}, ["mixed, test, row 2", "text is needed"]),
    "no folder": ({"path": "/nowhere/data"}, ["'/nowhere/data' cannot be loaded"]),
    "nothing of the hub": ({"path": "nobody/nothing"}, ["nobody/nothing"]),
    "too few": ({"count": 9}, ["prompts.count = 9", "5 prompts"]),
}


@pytest.mark.parametrize(("changes", "parts"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused(folder, changes, parts, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "mixed").mkdir()
    (folder.parent / "mixed" / "test.jsonl").write_text('{"ask": "a"}\n{"ask": {"b": 1}}')
    with pytest.raises(PromptError) as caught:
        read_prompts(source(**{"path": folder} | changes))
    for part in parts:
        assert part in str(caught.value)


def test_an_empty_folder_and_a_missing_package_are_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PromptError, match="any data files"):
        read_prompts(source(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PromptError, match="pip install"):
        read_prompts(source(folder))


def test_the_command_ends_with_two_and_writes_nothing(folder, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = {"kind": "hf_dataset", "path": str(folder), "split": "dev"}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings | {"prompts": prompts}))
    result = CliRunner().invoke(app, ["run", "exp.yaml", "--out", "made"])
    assert result.exit_code == 2
    assert "'dev'" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "made").exists()
