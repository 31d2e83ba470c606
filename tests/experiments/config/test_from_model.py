"""`samplings: [{from: model}]` decodes what `generate` decodes without arguments."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.run.models import load_models
from treespec.experiments.run.ours import decode_ours
from treespec.sampling.processing.rows import rows_of_text
from treespec.stopping import stop_at_tokens
from treespec.tree import Law, TokenTree, TreeShape

NEW = 40
PROMPT = "def area(width, height):\n    return width"
FIELDS = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.97,
    "epsilon_cutoff": 3e-4, "eta_cutoff": 3e-4, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3,
    "min_length": 20, "min_new_tokens": 12, "suppress_tokens": [260, 261, 300],
    "begin_suppress_tokens": [198, 10, 13], "bad_words_ids": [[32], [33, 34]],
    "sequence_bias": [[[40], 2.0], [[41, 42], -3.0]], "forced_bos_token_id": 44, "forced_eos_token_id": 5,
    "exponential_decay_length_penalty": [10, 1.1], "eos_token_id": [0, 7], "pad_token_id": 0,
}  # fmt: skip
"""Every field that samplings have and transformers has too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "target"
    shutil.copytree(str(files("treespec") / "embedded" / "target"), folder)
    return folder


ALONE = {
    "forced_bos_token_id": 44, "min_length": 9, "forced_eos_token_id": 0, "sequence_bias": [[[0], 30.0]],
    "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
"""Fields that others hide, for a prompt of one token: without the minimum the text would end at once."""


def opened(folder: Path, do_sample: bool, fields=FIELDS):
    file = folder / "generation_config.json"
    file.write_text(json.dumps(fields | {"do_sample": do_sample}), encoding="utf-8")
    config = load_config(
        "smoke",
        [
            f"models={json.dumps({'target': str(folder), 'draft': 'none', 'dtype': 'float32'})}",
            "samplings=[{from: model}]",
            f"max_new_tokens={NEW}",
            "methods=[{kind: plain}, "
            "{kind: tree, draft: {source: lookup}, "
            "shape: {kind: budget, depth: 4, size: 8, branching: 2}}, "
            "{kind: tree, draft: {source: early_exit, layers: 2}, shape: 'chain:3'}]",
        ],
    )
    pair = load_models(config.models)
    assert isinstance(pair.target.model.generation_config, GenerationConfig)
    return build(config).ending(pair.end_tokens), pair


def generated(pair, prompt, **arguments):
    torch.manual_seed(3)
    with pair.target.as_transformers() as plain:
        return plain.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            max_new_tokens=NEW,
            **arguments,
        )


@pytest.mark.parametrize(("text", "fields"), [(PROMPT, FIELDS), (None, ALONE)])
def test_greedy_ids_equal_generate_without_arguments(folder, text, fields):
    experiment, pair = opened(folder, False, fields)
    prompt = torch.tensor([50] if text is None else pair.tokenizer.encode(text))
    wanted = generated(pair, prompt)[0, len(prompt) :].tolist()
    (sampling,) = experiment.samplings
    for method in experiment.methods:
        steps = decode_ours(
            pair, method, sampling, prompt, max_new_tokens=NEW, stop=stop_at_tokens(pair.end_tokens),
            seed=0,
        )  # fmt: skip
        assert [token for step in steps for token in step.text] == wanted, method.name


def test_sampled_rows_equal_those_of_generate(folder):
    experiment, pair = opened(folder, do_sample=True)
    (sampling,) = experiment.samplings.values()
    assert sampling.temperature == 0.8
    prompt = torch.tensor(pair.tokenizer.encode(PROMPT))
    made = generated(
        pair, prompt, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    ids = made.sequences[0].tolist()
    rows = rows_of_text(sampling, len(prompt), prompt.device)
    for i, (scores, logits) in enumerate(zip(made.scores, made.logits, strict=True)):
        tree = TokenTree(
            TreeShape.chain(0),
            torch.tensor(ids[len(prompt) + i - 1 :][:1]),
            None,
            Law.DETERMINISTIC,
        )
        ours = rows(tree, logits, ids[: len(prompt) + i])[0]
        torch.testing.assert_close(ours, scores[0].float().softmax(-1), rtol=0, atol=1e-6)
