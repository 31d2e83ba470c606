"""The command line: every wrong input ends with exit code 2 and one message, without a traceback."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.errors import RunFolderError


@pytest.fixture
def call(settings, tmp_path, monkeypatch):
    """Call `treespec` in an empty folder with the tiny config in `exp.yaml`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings))

    def call(*arguments):
        return CliRunner().invoke(app, [os.fspath(a) for a in arguments])

    return call


def refused(result, *parts):
    """Assert exit code 2 and one message that contains these parts."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def test_run_and_report(call, tmp_path):
    result = call("run", "exp.yaml", "max_new_tokens=4", "-q")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "tiny"
    assert json.loads((folder / "manifest.json").read_text())["config"]["max_new_tokens"] == 4
    assert (folder / "report.html").exists()
    again = call("run", "exp.yaml", "max_new_tokens=4")
    assert again.exit_code == 0
    assert "already finished" in again.stderr
    shown = call("report", folder)
    assert shown.exit_code == 0
    assert "generate" in shown.output
    assert "report.html" in shown.output


def test_help_is_light():
    code = (
        "import sys, treespec.experiments.cli.main; "
        "print([m for m in ('torch', 'pydantic', 'polars') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"


def test_debug_shows_the_traceback(call):
    result = call("run", "exp.yaml", "seed=x", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.output + result.stderr


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "methods[4].shape={kind: expansion, branchng: [2]}",
            ["methods[4].shape.branchng", "'branching'"],
        ),
        ("methods[4].shape.kind=expnsion", ["unknown kind 'expnsion'", "did you mean 'expansion'"]),
        ("methods[0].kind=genrate", ["methods[0].kind", "'generate'"]),
        ("max_new_tokens=0", ["max_new_tokens = 0"]),
        ("samplings[0].temperature=-0.5", ["samplings[0].temperature = -0.5"]),
        ("samplings[0].top_p=1.01", ["samplings[0].top_p = 1.01"]),
        ("samplings[0].top_p=0", ["samplings[0].top_p = 0"]),
        ("methods[4].shape={kind: parents, parents: [-1, 5]}", ["parents[1] = 5"]),
        ("methods[4].rule=rrs", ["methods[4]", "rrs", "deterministic"]),
        ("models.target=/nowhere/model", ["/nowhere/model"]),
        ("models={target: nobody/no-such-model, draft: nobody/other}", ["nobody/no-such-model"]),
        ("models.device=cuda:99", ["cuda:99"]),
        ("prompts.path=missing.jsonl", ["missing.jsonl"]),
        ("prompts.field=quesion", ["line 1", "'quesion'", "question_id, category, prompt"]),
        ("prompts.count=99", ["prompts.count = 99"]),
        ("prompts={kind: text, path: empty.txt}", ["empty.txt"]),
        ("prompts={kind: text, path: latin.txt}", ["latin.txt", "UTF-8"]),
        ("prompts={kind: text, path: long.txt}", ["long.txt", "context is 128"]),
        ("max_new_tokens=120", ["120 new tokens", "context is 128"]),
        (
            "methods[3].shape={kind: chain, depth: 110}",
            ["'chain 110'", "110 levels of a tree", "context is 128"],
        ),
        ("prompts={kind: jsonl, path: blank.jsonl}", ["blank.jsonl, line 2", "'prompt' is empty"]),
        ("seed", ["write key=value"]),
    ],
)
def test_wrong_input(call, tmp_path, override, parts):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Übung".encode("latin-1"))
    (tmp_path / "blank.jsonl").write_text('{"prompt": "a"}\n{"prompt": " "}\n')
    (tmp_path / "long.txt").write_text("walk the tree " * 200)
    extra = ["methods[4].law=deterministic"] if "rrs" in override else []
    refused(call("run", "exp.yaml", override, *extra), *parts)


def test_different_tokenizers(call, tiny_pair, tmp_path):
    import shutil

    draft = tmp_path / "draft"
    shutil.copytree(tiny_pair / "draft", draft)
    data = json.loads((draft / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    first, second = "a", "b"
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (draft / "tokenizer.json").write_text(json.dumps(data))
    models = f"models={{target: {tiny_pair / 'target'}, draft: {draft}}}"
    refused(call("run", "exp.yaml", models), "tokenizer")


def test_a_model_of_nan(call, tiny_pair, tmp_path):
    import shutil

    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(tiny_pair, tmp_path / "nan")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "nan" / "target")
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    model.save_pretrained(tmp_path / "nan" / "target")
    refused(call("run", "exp.yaml", "models.target=nan"), "NaN or infinite logits")


def test_a_folder_of_another_config(call):
    assert call("run", "exp.yaml", "methods=[{kind: plain}]", "-q").exit_code == 0
    refused(call("run", "exp.yaml"), "belongs to another config", "--out", "--fresh", "methods")
    result = call("run", "exp.yaml", "methods=[{kind: plain}]", "seed=1", "-q", "--fresh")
    assert result.exit_code == 0, result.output


@pytest.fixture
def broken_generate(monkeypatch):
    """The baseline `generate` fails on every prompt."""
    from treespec.experiments.run import unit

    def broken(*arguments, **more):
        raise RuntimeError("boom")

    monkeypatch.setattr(unit, "generate_plain", broken)


@pytest.mark.usefixtures("broken_generate")
def test_a_failed_method_hides_no_other_error(call, monkeypatch):
    def broken(run):
        raise RunFolderError(f"{run.folder}/trees.parquet cannot be read")

    monkeypatch.setattr("treespec.experiments.report.page.write_report", broken)
    result = call("run", "exp.yaml", "methods=[{kind: generate}, {kind: plain}]")
    refused(result, "trees.parquet cannot be read")


@pytest.mark.usefixtures("broken_generate")
def test_one_process_of_several_speaks(call, monkeypatch):
    monkeypatch.setattr("treespec.experiments.run.ranks.rank", lambda: 1)
    result = call("run", "exp.yaml", "methods=[{kind: generate}, {kind: plain}]", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "failed" not in result.stderr


@pytest.mark.usefixtures("broken_generate")
@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ("[{kind: generate}]", "4 failed; --retry runs them again"),
        (
            "[{kind: generate}, {kind: plain}]",
            "failed: prompt 0, T=0, generate: an error inside the decoding: boom",
        ),
    ],
)
def test_a_failed_method_ends_with_exit_code_1(call, methods, says):
    result = call("run", "exp.yaml", f"methods={methods}", "-q")
    assert result.exit_code == 1
    assert says in result.stderr
    assert "Traceback" not in result.output
