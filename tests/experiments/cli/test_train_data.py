"""`treespec train data`: writes a folder, says what it holds, and rejects bad input with exit code 2."""

import json

import pytest
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.training.texts.text_data import TextData


def call(*arguments):
    return CliRunner().invoke(app, ["train", "data", *map(str, arguments)])


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    for name in range(6):
        lines = (f"value_{name}_{i} = {name} + {i}\n" for i in range(6 + name))
        (folder / f"{name}.py").write_text("".join(lines))
    return folder


def test_a_folder_as_it_is(texts, tmp_path):
    out = tmp_path / "texts"
    done = call(out, "--texts", texts, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    data = TextData.open(out)
    assert said["texts"] == len(data) == 6
    assert said["answer_tokens"] == data.tokens
    assert not data.prompt_lengths.any()
    table = call(out, "--texts", texts).stdout
    assert f"{data.tokens:,}" in table
    assert "leaks in what is kept" in table
    refused = call(out, "--texts", texts, "--seed", 1)
    assert refused.exit_code == 2
    assert "another recipe (seed: 0 -> 1)" in refused.output


def test_the_target_continues_a_folder(texts, tmp_path):
    out = tmp_path / "texts"
    arguments = ("--texts", texts, "--continue", "--tokens", 60, "--batch", 4, "--answer", 12)
    done = call(out, *arguments, "--greedy", 0)
    assert done.exit_code == 0, done.output
    data = TextData.open(out)
    assert data.tokens >= 60
    assert data.prompt_lengths.min() > 8
    assert not data.greedy.any()
    assert "PSF-2.0" in (out / "DATA_CARD.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokens", 0), "--tokens = 0"),
        (("--batch", 0), "--batch = 0"),
        (("--greedy", 1.5), "--greedy = 1.5"),
        (("--temperature", -1), "--temperature = -1"),
        (("--continue",), "--texts FOLDER"),
        (("--texts", "no-such-folder"), "no such folder"),
        (("--target", "./nowhere"), "no model folder './nowhere'"),
        (("--dtype", "int3"), "int3"),
    ],
)
def test_bad_input_is_told_and_leaves_nothing(arguments, said, tmp_path):
    done = call(tmp_path / "texts", *arguments)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "texts").exists()


def test_a_folder_without_text(tmp_path):
    (tmp_path / "given").mkdir()
    done = call(tmp_path / "texts", "--texts", tmp_path / "given")
    assert done.exit_code == 2
    assert "there is no text in it" in done.output
    assert not (tmp_path / "texts").exists()
