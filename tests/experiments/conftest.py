"""A pair of tiny random models with a tokenizer, in a folder, and a config that runs on it in a second."""

import copy
import json
import os
from dataclasses import replace

import pytest
import torch

TEXT = "def walk(tree):\n    for node in tree.children:\n        yield node, walk(node)\n" * 3


@pytest.fixture(autouse=True, scope="session")
def _nobody_waits_for_a_quiet_machine():
    from treespec.experiments.records import machine_load

    machine_load.WATCH_S = 0.0
    machine_load.read_counters = lambda: (
        None
    )  # else results of tests would depend on the neighbours


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory):
    """A folder with target/ and draft/: llamas of two layers, the draft the target with noise."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = _tokenizer()
    target = _llama(len(tokenizer), layers=2)
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def loaded_pair(tiny_pair):
    """The same pair, loaded once."""
    from treespec import load_pair

    return load_pair(tiny_pair)


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory):
    """Four prompts in JSONL."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {"question_id": f"q{i}", "category": "code", "prompt": TEXT[7 * i : 7 * i + 40]}
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def settings(tiny_pair, prompt_file):
    """A config as plain data; tests make changed copies."""
    return {
        "name": "tiny",
        "models": {"target": os.fspath(tiny_pair), "dtype": "float32"},
        "prompts": {"kind": "jsonl", "path": os.fspath(prompt_file), "count": 2},
        "max_new_tokens": 6,
        "seed": 7,
        "warmup": 0,
        "samplings": [{"temperature": 0}, {"temperature": 1.0}],
        "methods": [
            {"kind": "generate"},
            {"kind": "plain"},
            {"kind": "assisted", "lengths": [3], "thresholds": [0.0]},
            {"kind": "tree", "shape": {"kind": "chain", "depth": 3}},
            {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}},
        ],
    }


def _tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def _llama(vocab_size, layers):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    return model


@pytest.fixture
def start(settings, loaded_pair, tmp_path):
    """Run the tiny config, changed, in a folder."""

    from treespec.experiments.config.schema import Config
    from treespec.experiments.measure.searched_run import run

    def start(changes=None, out="run", **options):
        config = Config.model_validate(settings | (changes or {}))
        return run(config, folder=tmp_path / out, load=lambda models: loaded_pair, **options)

    return start


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory):
    """The demo's report: one near-tie, one real divergence, one failed prompt, one hostile name."""
    from run_folders.folders import demo_methods, write_run
    from run_folders.trees import write_trees

    from treespec.experiments.report.page import write_report
    from treespec.experiments.report.run import load_run

    methods = list(demo_methods())
    methods[6] = replace(methods[6], diverges={3: 0.03125})
    methods[8] = replace(methods[8], diverges={1: 2.5}, errors=frozenset({4}))
    methods[9] = replace(methods[9], name="<script>alert(1)</script>")
    folder = write_run(tmp_path_factory.mktemp("report") / "run", methods, spread=0.12, jitter=0.03)
    write_trees(folder)
    path = folder / "manifest.json"
    told = {"prompt_texts": ["class Tree:\n    </script><b>first</b>"]}  # of the first prompt only
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    return write_report(load_run(folder))


@pytest.fixture
def clear_at_once(monkeypatch):
    """A look that compares anything is clear, however the clock ran."""
    from treespec.experiments.run import until

    monkeypatch.setattr(until, "_clear", lambda until, duel: True)


@pytest.fixture(scope="session")
def t5_pair(tiny_pair, tmp_path_factory):
    """A T5 over T5 pair with the tokenizer of the tiny pair."""
    from tiny_encoder_decoders import encoder_decoder
    from tiny_models import perturbed
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("t5")
    tokenizer = AutoTokenizer.from_pretrained(tiny_pair / "target")
    target = encoder_decoder("t5", vocab_size=len(tokenizer))
    draft = perturbed(target, 0.05)
    draft.generation_config = target.generation_config
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def over_sources(t5_pair, tmp_path_factory):
    """A config of a run of this pair over three sources."""
    from tiny_encoder_decoders import SOURCES

    path = tmp_path_factory.mktemp("articles") / "articles.jsonl"
    rows = [
        {"article": text, "blank": " "} | ({"prompt": "def"} if i else {})
        for i, text in enumerate(SOURCES)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "summaries",
        "models": {"target": os.fspath(t5_pair), "dtype": "float32", "passes": "eager",
                   "draft_passes": "eager"},
        "prompts": {"kind": "jsonl", "path": os.fspath(path), "source": "article"},
        "max_new_tokens": 12,
        "warmup": 0,
        "samplings": [{"temperature": 0}, {"temperature": 1.0}],
        "methods": [
            {"kind": "generate"},
            {"kind": "plain"},
            {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 2]}},
            {"kind": "tree", "draft": {"source": "lookup"},
             "shape": {"kind": "budget", "size": 8, "depth": 4, "branching": 2}},
        ],
    }  # fmt: skip
