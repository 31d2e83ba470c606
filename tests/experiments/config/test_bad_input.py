"""What users get wrong in files and options: exit code 2 and one message that names the place."""

import json
import os
import re

import pytest
from typer.testing import CliRunner

from treespec.experiments.cli.main import app

BASE = """name: x
models: {target: /nowhere/model, dtype: float32}
prompts: {kind: jsonl, path: prompts.jsonl}
max_new_tokens: 4
samplings: [{temperature: 0}]
methods: [{kind: plain}]
"""
LATENCY = {
    "version": 1,
    "batches": {"1": {"verify_ms": {"1": 1.0, "99": 2.0}, "laws": {"any": {"level_ms": 0.1}}}},
}
FILES = {  # what a file is named for -> the command line
    "config": "run {}",
    "grid": "sweep {} sweep.seed=[0,1]",
    "prompts": "run ok.yaml prompts.path={}",
    "trace": "replay {} --shapes chain:2",
    "steps": "estimate {}",
    "rates": "search {} --size 4",
    "times": "search 0.6 --latency {} --size 4",
    "tree": "export {} --to treespec",
}
WRONG_FILES = ("folder", "pipe", "weights")
CONFIGS = {
    "seed: [\n": "line 8",
    "seed: &a 1\nwarmup: *a\n": "alias",
    "seed: 1\nseed: 2\n": "'seed' appears twice",
    "sed: 1\n": "did you mean 'seed'?",
    "seed: x\n": "seed = 'x'",
    "output: ../x\n": "output",
}
JSON = {
    "rates": ("search bad.json --size 8", '{"kind": "acceptance", "version": 2}', "version = 2"),
    "times": ("search 0.6 --latency bad.json --size 4", '{"version": 1}', "batches is missing"),
    "a time": (
        "search 0.6 --latency bad.json --size 4",
        json.dumps(LATENCY).replace("2.0", "-2.0"),
        "-2.0: a time must be a number of at least 0",
    ),
    "a row": ("run ok.yaml prompts.path=bad.json", '{"prompt": 3}\n', "bad.json, line 1"),
    "no row": ("run ok.yaml prompts.path=bad.json", '{"prompt": "a"}\n{oops\n', "bad.json, line 2"),
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call a command that must be refused; returns the message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.yaml").write_text(BASE)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "def f(x):"}\n' * 3)
    (tmp_path / "folder").mkdir()
    os.mkfifo("pipe")
    with open("weights", "wb") as file:
        file.truncate(2**33)

    def call(*arguments):
        done = CliRunner().invoke(app, list(arguments))
        assert done.exit_code == 2, done.output[:2000]
        assert not re.search(r"\b[A-Z]\w*(?:Error|Exception)\b|Traceback", done.stderr), done.stderr
        assert len(done.stderr) < 2500
        return done.stderr

    return call


@pytest.mark.parametrize("name", WRONG_FILES)
@pytest.mark.parametrize("line", FILES.values(), ids=FILES)
def test_a_file_of_another_kind_is_named(call, name, line):
    assert name in call(*line.format(name).split(" "))


@pytest.mark.parametrize("text", CONFIGS)
def test_a_mistake_in_a_config_is_named(call, tmp_path, text):
    (tmp_path / "bad.yaml").write_text(BASE + text)
    said = call("run", "bad.yaml")
    assert "bad.yaml" in said or "output" in said
    assert CONFIGS[text] in said


@pytest.mark.parametrize("name", JSON)
def test_a_mistake_in_a_json_file_is_named(call, tmp_path, name):
    line, text, words = JSON[name]
    (tmp_path / "bad.json").write_text(text)
    said = call(*line.split(" "))
    assert "bad.json" in said
    assert words in said


def test_a_sweep_of_millions_is_refused(call):
    many = ",".join(map(str, range(1, 3001)))
    said = call("sweep", "ok.yaml", f"sweep.seed=[{many}]", f"sweep.max_new_tokens=[{many}]")
    assert "9,000,000 jobs" in said
