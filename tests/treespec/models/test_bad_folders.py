"""Damaged model folders: each is refused in one sentence that names file and key."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from treespec.errors import TreespecError
from treespec.models.load import load_pair

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    torch.manual_seed(0)
    for role in ("target", "draft"):
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=16,
                num_hidden_layers=1,
                intermediate_size=32,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=64,
            )
        ).save_pretrained(folder / role)
        PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder / role)
    return folder


def edit(file, **fields):
    """Set fields of a JSON file."""

    def change(folder):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def write(file, content):
    return lambda folder: (folder / file).write_bytes(content)


def cut(count):
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:count])


def instead(file, content):
    """Replaces all weights by this file."""

    def change(folder):
        (folder / WEIGHTS).unlink()
        (folder / file).write_bytes(content)

    return change


def weights(change):
    def changed(folder):
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return changed


INDEX = "model.safetensors.index.json"
UNKNOWN = {"quant_method": "gloop", "bits": 4}
JSON_FILES = (CONFIG, TOKENIZER, "generation_config.json", "tokenizer_config.json")
NO_OBJECTS = (b"", b"[]", b"{oops", bytes(range(128, 256)))
KINDS = (("model_type", "gloop"), ("model_type", [1]), ("model_type", "t5"), ("hidden_act", "x"))
SHARDS = b'{"weight_map": {"a": "b.safetensors"}}'
CASES = {
    **{f"{f} {c!r}": (write(f, c), f) for f in JSON_FILES for c in NO_OBJECTS},
    **{f"{k}={v!r}": (edit(CONFIG, **{k: v}), "target") for k, v in KINDS},
    **{f"weights cut at {n}": (cut(n), WEIGHTS) for n in (0, 7, 8, 100, -1)},
    "a context of nothing": (edit(CONFIG, max_position_embeddings=0), "max_position_embeddings = 0"),
    "an unknown quantisation": (edit(CONFIG, quantization_config=UNKNOWN), "'gloop' of its config"),
    "weights of text": (write(WEIGHTS, b"hello"), WEIGHTS),
    "weights of a pickle": (write(WEIGHTS, pickle.dumps({"a": 1})), WEIGHTS),
    "weights of NaN": (weights(lambda t: t["model.norm.weight"].fill_(float("nan"))), "target"),
    "a weight is missing": (weights(lambda t: t.pop("model.norm.weight")), "model.norm.weight"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "a pickle with code": (instead("pytorch_model.bin", pickle.dumps(print)), "pytorch_model.bin"),
    "an index of nothing": (instead(INDEX, b"{}"), INDEX),
    "an index of what is not there": (instead(INDEX, SHARDS), "b.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_broken_folders(pair, tmp_path, name):
    change, named = CASES[name]
    folder = shutil.copytree(pair, tmp_path / "pair")
    change(folder / "target")
    if name == "tokenizer_config.json b''":
        named = "tokenizer"
    with pytest.raises(TreespecError) as caught:
        load_pair(folder)
    text = str(caught.value)
    assert str(folder / "target") in text, text
    assert named in text, text


def test_the_cause_is_kept(pair, tmp_path):
    folder = shutil.copytree(pair, tmp_path / "pair")
    cut(100)(folder / "target")
    with pytest.raises(TreespecError) as caught:
        load_pair(folder)
    assert caught.value.__cause__ is not None
