"""The training recipe in miniature, its parts, and the pair that is shipped."""

import json
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from typer.testing import CliRunner

from treespec.experiments.training import loop
from treespec.experiments.training.__main__ import EMBEDDED_FOLDER, app
from treespec.experiments.training.corpus import is_held_out, read_corpus, shorten
from treespec.experiments.training.evaluate import measure_pair
from treespec.experiments.training.loop import Optimizers
from treespec.experiments.training.pretraining import (
    distillation_loss,
    next_token_loss,
    train_model,
)
from treespec.experiments.training.sizes import MINIATURE, MINIATURE_SCHEDULE, build_model
from treespec.experiments.training.tokenizer import END_OF_TEXT, Batches

ROOT = EMBEDDED_FOLDER.parents[1]
SHIPPED_BYTES = 24_000_000

CODE = st.lists(
    st.sampled_from(["    ", "\n", "\r\n", "\t", " ", "def ", "x", "__init__", "1024", "):", "é"])
).map("".join)


class OneToken:
    """Stands in for a tokenizer if only the end-of-text id matters."""

    eos_token_id = 0


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus folder; the hash of their names holds out files 27 and 55."""
    folder = tmp_path_factory.mktemp("sources")
    words = ["".join(letters) for letters in product("bdfg", "aeiou", "lmnrst")]
    for number in range(60):
        functions = [
            f'def {words[i]}_{words[number]}(value: int) -> int:\n    """Step {i}."""\n'
            f"    return value * {number * i % 7} + {i}\n"
            for i in range(40)
        ]
        (folder / f"module_{number}.py").write_text("\n\n".join(functions))
    (folder / "tests").mkdir()
    (folder / "tests" / "module_61.py").write_text("assert False\n")
    (folder / "latin.py").write_bytes(b"# caf\xe9\n")
    return folder


def arguments(sources: Path, out: Path, *more: str) -> list[str]:
    """Arguments of the training command for a miniature."""
    given = ["--size", "miniature", "--target-tokens", "3000", "--draft-tokens", "2000"]
    return [*given, "--corpus", str(sources), "--out", str(out), *more]


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="session")
def made(sources: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the miniature pair."""
    out = tmp_path_factory.mktemp("product")
    command = [sys.executable, "-m", "treespec.experiments.training"]
    command += arguments(sources, out, "--work", str(work))
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return out


@pytest.fixture(params=["miniature", "shipped"])
def pair_folder(request: pytest.FixtureRequest) -> Path:
    """The folder that the recipe has just written, and the one in the package."""
    if request.param == "shipped":
        return EMBEDDED_FOLDER
    return request.getfixturevalue("made")


@cache
def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


def test_corpus_leaves_out_tests_and_undecodable_files(sources: Path) -> None:
    corpus = read_corpus(sources)
    assert [file.path for file in corpus.held_out] == ["module_27.py", "module_55.py"]
    paths = {file.path for file in corpus.training + corpus.held_out}
    assert paths == {f"module_{number}.py" for number in range(60)}


def test_held_out_rows_were_never_trained_on(sources: Path, made: Path) -> None:
    training = read_corpus(sources).training
    assert not any(is_held_out(file.path) for file in training)
    rows = [json.loads(line) for line in (made / "held_out.jsonl").read_text().splitlines()]
    assert {row["file"] for row in rows} == {"module_27.py", "module_55.py"}
    for row in rows:
        assert (sources / row["file"]).read_text().startswith(row["text"])
        assert row["file"] not in {file.path for file in training}
        assert row["text"] not in {file.text for file in training}


def test_models_load_and_compute(pair_folder: Path) -> None:
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(pair_folder / name)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert model.config.num_key_value_heads < model.config.num_attention_heads
        logits = model(torch.arange(12)[None]).logits
        assert logits.shape == (1, 12, model.config.vocab_size)
        assert logits.isfinite().all()


def test_generation_config_changes_nothing(pair_folder: Path) -> None:
    for name in ("target", "draft"):
        config = json.loads((pair_folder / name / "generation_config.json").read_text())
        config.pop("transformers_version")
        assert config == {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def test_both_folders_hold_one_tokenizer(pair_folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        target, draft = (pair_folder / side / name for side in ("target", "draft"))
        assert target.read_bytes() == draft.read_bytes()
    tokenizer = tokenizer_of(pair_folder / "target")
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == END_OF_TEXT
    assert tokenizer.eos_token_id == 0
    config = json.loads((pair_folder / "target" / "config.json").read_text())
    assert len(tokenizer) == config["vocab_size"]


@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(), CODE))
def test_shipped_tokenizer_round_trips_every_text(text: str) -> None:
    tokenizer = tokenizer_of(EMBEDDED_FOLDER / "draft")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_indentation_is_one_token() -> None:
    tokenizer = tokenizer_of(EMBEDDED_FOLDER / "target")
    assert len(tokenizer.encode("\n        return")) <= 3
    assert len(tokenizer.encode(" " * 16)) == 1


def test_a_finished_target_is_not_trained_again(
    sources: Path, work: Path, made: Path, tmp_path: Path
) -> None:
    again = CliRunner().invoke(app, arguments(sources, tmp_path, "--work", str(work)))
    assert again.exit_code == 0, again.output
    for name in ("target", "draft"):
        again_weights, weights = (
            folder / name / "model.safetensors" for folder in (tmp_path, made)
        )
        assert again_weights.read_bytes() == weights.read_bytes()


def test_another_recipe_in_the_same_work_folder_is_refused(
    sources: Path, work: Path, made: Path, tmp_path: Path
) -> None:
    given = arguments(sources, tmp_path, "--work", str(work), "--seed", "1")
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 2
    assert "another recipe" in refused.output
    assert not list(tmp_path.iterdir())


def test_folder_without_sources_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, arguments(tmp_path, tmp_path / "out"))
    assert refused.exit_code == 2
    words = refused.output.replace("│", " ").split()  # the message is wrapped inside a box
    assert "must contain Python files" in " ".join(words)


def random_files(count: int = 5) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(1, 300, 200 + 7 * i) for i in range(count)]


def test_an_interrupted_run_equals_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)

    def run(name: str, stop_after: int) -> LlamaForCausalLM:
        calls = 0

        def loss(
            model: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor
        ) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > stop_after:
                raise InterruptedError
            return next_token_loss(model, inputs, targets)

        model = build_model(MINIATURE.draft, MINIATURE, OneToken(), seed=0)
        train_model(
            model,
            random_files(),
            loss,
            MINIATURE_SCHEDULE,
            1500,
            seed=0,
            checkpoint=tmp_path / name,
        )
        return model

    unbroken = run("unbroken.pt", 1000)
    with pytest.raises(InterruptedError):
        run("broken.pt", 5)
    resumed = run("broken.pt", 1000)
    for expected, parameter in zip(unbroken.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, parameter)


def test_an_epoch_shows_every_token_once_in_an_order_of_its_own() -> None:
    batches = Batches([np.arange(77), np.arange(77, 101)], rows=2, length=10, seed=3)
    first, second = (
        torch.cat([batches[step] for step in range(start, start + 5)]) for start in (0, 5)
    )
    assert len(set(first[:, :-1].flatten().tolist())) == 100
    assert len(set(second[:, :-1].flatten().tolist())) == 100
    assert not torch.equal(first, second)
    assert torch.equal(batches[3], first[6:8])


def test_rate_warms_up_stays_and_decays_to_zero() -> None:
    model = build_model(MINIATURE.draft, MINIATURE, OneToken(), seed=0)
    optimizers = Optimizers(dict(model.named_parameters()), MINIATURE_SCHEDULE, total_tokens=1000)
    assert optimizers.factor(step=0, tokens=0) == 0.5
    assert optimizers.factor(step=5, tokens=549) == 1.0
    assert optimizers.factor(step=9, tokens=775) == pytest.approx(0.5)
    assert optimizers.factor(step=9, tokens=1000) == 0.0


def two_models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    models = [build_model(MINIATURE.draft, MINIATURE, OneToken(), seed).eval() for seed in (0, 1)]
    for model in models:  # far from uniform
        model.get_input_embeddings().weight.data *= 40
    return models[0], models[1]


def test_distillation_loss_is_the_divergence_from_the_target() -> None:
    target, draft = two_models()
    tokens = torch.randint(0, 300, (2, 9))
    p, q = (model(tokens).logits.double().softmax(-1) for model in (target, draft))
    divergence = (p * (p / q).log()).sum(-1).mean().item()
    value = distillation_loss(target)(draft, tokens, tokens)
    assert value.item() == pytest.approx(divergence, rel=1e-4)
    value.backward()
    assert all(parameter.grad is None for parameter in target.parameters())


def test_measurements_equal_a_plain_computation() -> None:
    target, draft = two_models()
    tokens = np.random.default_rng(1).integers(0, 300, 41)
    found = measure_pair(target, draft, [tokens[:15], tokens[15:]], text_bytes=80, length=100)
    ids = torch.from_numpy(tokens)[None]
    p, q = (model(ids[:, :-1]).logits.double().softmax(-1)[0] for model in (target, draft))
    assert found.tokens == 40
    following = ids[0, 1:, None]
    assert found.target_nats == pytest.approx(-p.gather(1, following).log().mean().item(), rel=1e-4)
    assert found.draft_nats == pytest.approx(-q.gather(1, following).log().mean().item(), rel=1e-4)
    assert found.acceptance == pytest.approx(torch.minimum(p, q).sum(1).mean().item(), rel=1e-4)
    order = q.argsort(-1, descending=True)
    places = [order[i].tolist().index(p[i].argmax().item()) for i in range(40)]
    assert found.ranks == pytest.approx(tuple(places.count(k) / 40 for k in range(8)))
    assert found.bits_per_byte(np.log(2)) == pytest.approx(0.5)
    alike = measure_pair(target, target, [tokens], text_bytes=80, length=10)
    assert (alike.acceptance, alike.ranks[0]) == (pytest.approx(1.0), 1.0)


@given(text=st.text(alphabet="ab\né"), most=st.integers(0, 12))
def test_shortened_text_is_the_longest_run_of_whole_lines(text: str, most: int) -> None:
    lines = text.splitlines(keepends=True)
    whole = [k for k, line in enumerate(lines, 1) if line.endswith("\n") or k == len(lines)]
    fitting = [k for k in [0, *whole] if len("".join(lines[:k]).encode()) <= most]
    assert shorten(text, most) == "".join(lines[: fitting[-1]])


def test_shipped_pair_is_small_and_documented() -> None:
    files = [path for path in EMBEDDED_FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES
    assert not list(EMBEDDED_FOLDER.rglob("*.py"))
    sizes = {
        name: AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER / name).num_parameters()
        for name in ("target", "draft")
    }
    assert 8_000_000 <= sizes["target"] <= 10_000_000
    assert 900_000 <= sizes["draft"] <= 1_100_000
    card = (EMBEDDED_FOLDER / "MODEL_CARD.md").read_text()
    for said in ("PSF-2.0", "sha256", "Seed 0", *(f"{size:,}" for size in sizes.values())):
        assert said in card


def test_shipped_prompts_are_held_out() -> None:
    lines = (EMBEDDED_FOLDER / "held_out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["file"] for row in rows}) == len(rows) >= 20
    for row in rows:
        assert is_held_out(row["file"])
        assert 3000 <= len(row["text"].encode()) <= 16 * 1024
        assert row["text"].endswith("\n")


def test_shipped_pair_is_trained_and_agrees() -> None:
    target, draft = (
        AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER / name, dtype=torch.float32)
        for name in ("target", "draft")
    )
    tokenizer = tokenizer_of(EMBEDDED_FOLDER / "target")
    lines = (EMBEDDED_FOLDER / "held_out.jsonl").read_text().splitlines()[:4]
    tokens = [np.array(tokenizer.encode(json.loads(line)["text"][:3000])) for line in lines]
    found = measure_pair(target, draft, tokens, text_bytes=12_000, length=512)
    assert found.target_nats < found.draft_nats < 4.0
    assert found.target_nats < 3.2
    assert found.acceptance > 0.5
    assert found.ranks[0] > 0.5
