"""`treespec generate`: streams one text, prints numbers to stderr, and rejects bad input."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GenerationConfig, PreTrainedTokenizerFast
from typer.testing import CliRunner

import treespec
from treespec import plugin_files
from treespec.experiments.cli import generate as module
from treespec.experiments.cli.main import app
from treespec.experiments.run import one_text
from treespec.experiments.run.one_text import decode_one, one_text_config
from treespec.models import quantised

FOUR = Path(__file__).parents[2] / "helpers" / "plugins" / "four_parts.py"
PROMPT = "def walk(tree):\n    for"


@pytest.fixture
def call(tiny_pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=None):
        words = ["generate", *map(str, arguments), "--pair", os.fspath(tiny_pair)]
        return CliRunner().invoke(app, words, input=stdin)

    return call


def config_of(pair, shape="kary:2x2", tokens=12, **sampling):
    method = {"shape": shape, "draft": None, "law": None, "rule": None}
    return one_text_config(
        {"target": os.fspath(pair), "dtype": "float32"},
        method,
        sampling or {"temperature": 0.0},
        tokens=tokens,
        seed=3,
        chat=False,
    )


def test_plain_where_nobody_looks(call, loaded_pair):
    done = call(PROMPT, "--tokens", 12, "--shape", "kary:2x2")
    assert done.exit_code == 0, done.output
    expected = treespec.generate(loaded_pair, PROMPT, max_new_tokens=12)
    assert done.stdout == expected.text + "\n" * (not expected.text.endswith("\n"))
    assert "\x1b" not in done.output
    (line,) = done.stderr.splitlines()
    assert f"{len(expected.tokens)} tokens" in line
    for part in ("steps", "tokens per step", "tokens per second", "2-ary 2, greedy, T=0"):
        assert part in line


def test_prompts_from_elsewhere(call, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    given = call(PROMPT, "--tokens", 6).stdout
    assert call("--file", "prompt.txt", "--tokens", 6).stdout == given
    assert call("-", "--tokens", 6, stdin=PROMPT).stdout == given


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--quantised", "int3", "error: --quantised = 'int3': must be 'int8-weight-only'"),
        (
            "--draft-quantised",
            "bitsandbytes-nf4",
            "error: --draft-quantised='bitsandbytes-nf4' needs",
        ),
        ("--draft-dtype", "float8", "error: --draft-dtype = 'float8': must be"),
    ],
)
def test_errors_name_options_of_the_models(call, monkeypatch, option, value, says):
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    done = call(PROMPT, option, value, "--tokens", 6)
    assert done.exit_code == 2
    assert done.stderr.startswith(says)


def test_precisions_and_tokenizers_of_the_models(call, tiny_pair, tmp_path):
    assert call(PROMPT, "--tokens", 6, "--draft-dtype", "bfloat16").exit_code == 0
    letters = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "e": 2, "t": 3}, unk_token="[UNK]"))
    shutil.copytree(tiny_pair / "draft", tmp_path / "draft")
    PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="[UNK]").save_pretrained("draft")
    models = ("--target", tiny_pair / "target", "--draft", "draft")
    words = ["generate", PROMPT, "--tokens", "6", *map(str, models)]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "another one (--other-tokenizer)" in refused.stderr
    assert CliRunner().invoke(app, [*words, "--other-tokenizer"]).exit_code == 0


def test_as_data(call):
    done = call(PROMPT, "--tokens", 9, "--temperature", 1, "--seed", 5, "--json")
    data = json.loads(done.stdout)
    assert done.stderr == ""
    assert data["tokens"] == len(data["ids"]) <= 9
    assert data["accepted"] <= data["tokens"]
    assert data["tokens_per_step"] == data["tokens"] / data["steps"]
    assert (data["law"], data["rule"], data["sampling"]) == ("without_replacement", "rrsw", "T=1")
    again = json.loads(
        call(PROMPT, "--tokens", 9, "--temperature", 1, "--seed", 5, "--json").stdout
    )
    assert again["ids"] == data["ids"]
    mapping = "{kind: eagle2, k: 2, depth: 2, size: 4}"
    assert (
        json.loads(call(PROMPT, "--shape", mapping, "--tokens", 5, "--json").stdout)["method"]
        == "EAGLE-2 2x2, 4"
    )
    plain = json.loads(call(PROMPT, "--shape", "plain", "--tokens", 5, "--json").stdout)
    assert (plain["accepted"], plain["tokens_per_step"]) == (0, 1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_pieces_are_the_text_and_know_what_was_drafted(tiny_pair, loaded_pair, temperature):
    pieces = []
    config = config_of(tiny_pair, tokens=60, temperature=temperature)
    made = decode_one(config, PROMPT, pieces.append, load=lambda models: loaded_pair)
    assert "".join(piece.text for piece in pieces) == made.text
    assert made.accepted > 0
    assert any(piece.accepted for piece in pieces)
    assert any(not piece.accepted for piece in pieces)
    assert len(made.tokens) - made.accepted <= made.steps


def test_a_character_of_several_tokens_is_shown_whole(loaded_pair):
    text = "π≈3 語 e"
    ids = loaded_pair.tokenizer.encode(text)
    assert len(ids) > len(text)
    pieces = one_text._Pieces(loaded_pair.tokenizer)
    shown = [piece.text for token in ids for piece in pieces.add([token], 0)]
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)
    broken = one_text._Pieces(loaded_pair.tokenizer)
    assert list(broken.add(ids[:1], 1)) == []
    assert [piece.text for piece in broken.rest()] == ["\ufffd"]


def test_control_characters_do_not_reach_a_terminal():
    assert module._visible("drafted\x1b[2J\n") == "drafted[2J\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["give one prompt"]),
        (["--file", "missing.txt"], ["missing.txt"]),
        ([""], ["the prompt is empty"]),
        (["--encoder-source", ""], ["--encoder-source: the source has no tokens"]),
        (["x", "--target", "y"], ["--pair names both"]),
        (["x", "--shape", "karry:2x3"], ["--shape = 'karry:2x3'", "kary:2x3"]),
        (["x", "--shape", "{kind:"], ["--shape is not YAML"]),
        (["x", "--shape", "{kind: chain}"], ["--shape.depth is missing", "chain:4"]),
        (["x", "--shape", "optimal:16"], ["depends on measurements of a run"]),
        (["x", "--shape", "plain", "--rule", "rrs"], ["--rule applies to trees only"]),
        (["x", "--shape", "plain", "--source", "lookup"], ["--source applies to trees only"]),
        (["x", "--source", "lokup"], ["--source: unknown source 'lokup'; did you mean 'lookup'?"]),
        (["x", "--source", "{ngram: 2}"], ["--source: a mapping with a 'source' is needed"]),
        (["x", "--source", "{source: lookup, ngram: 0}"], ["--source.ngram = 0"]),
        (["x", "--source", "lookup", "--shape", "chain:4"], ["--shape: the draft source 'lookup'"]),
        (["x", "--plugin", "missing.py"], ["missing.py"]),
        (["x", "--rule", "rsw"], ["--rule: unknown 'rsw'"]),
        (["x", "--rule", "chain"], ["needs a chain"]),
        (["x", "--temperature", "-1"], ["--temperature = -1.0"]),
        (["x", "--top-k", "0"], ["--top-k = 0"]),
        (["x", "--tokens", "0"], ["--tokens = 0"]),
        (["x", "--tokens", "1000"], ["the models' context is 128"]),
        (["x", "--dtype", "int8"], ["--dtype = 'int8'"]),
        (["x", "--chat"], ["chat"]),
    ],
)
def test_bad_input(call, arguments, parts):
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for part in parts:
        assert part in done.stderr


def test_the_text_itself_drafts(call, loaded_pair):
    expected = treespec.generate(loaded_pair, PROMPT, max_new_tokens=12)
    data = json.loads(call(PROMPT, "--tokens", 12, "--source", "lookup", "--json").stdout)
    assert data["ids"] == list(expected.tokens)
    assert (data["method"], data["law"]) == ("lookup chain 4", "deterministic")


def test_a_source_whose_trees_do_not_fit_says_what_does(call, loaded_pair):
    done = call(PROMPT, "--tokens", 4, "--source", "lookahead")
    assert done.exit_code == 2
    assert "--source: lookahead with window 7" in done.stderr
    fits = "{kind: budget, size: 56, depth: 9, branching: 11}"
    assert fits in done.stderr
    data = json.loads(
        call(PROMPT, "--tokens", 12, "--source", "lookahead", "--shape", fits, "--json").stdout
    )
    assert data["method"] == "lookahead budget 56"
    expected = treespec.generate(loaded_pair, PROMPT, max_new_tokens=12)
    assert data["ids"] == list(expected.tokens)


def test_parts_of_a_plug_in(call, loaded_pair, tmp_path, monkeypatch):
    """A plug-in's drafter, rule and growth decode the same text, after they were proved."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = treespec.generate(loaded_pair, PROMPT, max_new_tokens=12)
    source = ("--source", "{source: repeat, n: 2}", "--rule", "mine")
    for words, name, proofs in (
        (source, "repeat n=2 chain 4 (mine)", 2),
        (("--shape", "{kind: twins, depth: 3}"), "twins depth=3", 1),
    ):
        done = call(PROMPT, "--tokens", 12, "--plugin", FOUR, "--json", *words)
        assert done.exit_code == 0, done.stderr
        data = json.loads(done.stdout)
        assert data["method"] == name
        assert data["ids"] == list(expected.tokens)
        assert done.stderr.count("proving that the") == proofs
    plugin_files.load()
    without = call("x", *source)
    assert without.exit_code == 2
    assert "--source: unknown source 'repeat'" in without.stderr


def test_a_part_that_is_biased_is_refused(call, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "wrong.py"
    path.write_text(
        FOUR.read_text().replace("NodeChoice.of(c.draw(p), children)", "NodeChoice.of(0, children)")
    )
    done = call("x", "--plugin", path, "--rule", "mine")
    assert done.exit_code == 2
    assert "--rule: the rule 'mine' of" in done.stderr
    assert "does not keep the target's law" in done.stderr
    assert done.stdout == ""
    plugin_files.load()


def test_models_are_named_one_way():
    for words in (["--draft", "d"], ["--target", "t"]):
        done = CliRunner().invoke(app, ["generate", "x", *words])
        assert done.exit_code == 2
        assert "draft" in done.stderr


def test_bytes_that_are_no_text(call):
    done = call("-", stdin=b"\xff\xfe")
    assert done.exit_code == 2
    assert "stdin: not UTF-8" in done.stderr


def test_what_the_model_asks_for_is_told(tiny_pair, loaded_pair, monkeypatch):
    asked, said = GenerationConfig(repetition_penalty=1.2), []
    monkeypatch.setattr(loaded_pair.target.model, "generation_config", asked)
    decode_one(config_of(tiny_pair), PROMPT, say=said.append, load=lambda config: loaded_pair)
    assert any("asks for repetition_penalty = 1.2" in sentence for sentence in said)
    said.clear()
    named = config_of(tiny_pair, temperature=0.0, repetition_penalty=1.1)
    decode_one(named, PROMPT, say=said.append, load=lambda config: loaded_pair)
    assert not said
