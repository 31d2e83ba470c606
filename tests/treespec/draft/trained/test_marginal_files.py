"""Files of Medusa heads and block drafters: what does not fit is refused by name, before anything runs."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from heads import block, files, medusa
from marginal_heads import target
from safetensors.torch import save_file
from tiny_models import SMALL, build

from treespec.draft.trained.block_files import load_block, save_block
from treespec.draft.trained.medusa import load_medusa
from treespec.errors import LoadError, UnsupportedModel
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel
from treespec.testing import TabularModel, random_table

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def changed(folder, tensors=None, config=None, family=block, **options):
    """A random checkpoint whose tensors or settings a test has changed; None removes one."""
    family.checkpoint(folder, **options)
    old_tensors, old_config = files.read(folder)
    for file in folder.iterdir():
        file.unlink()
    new = {name: t for name, t in (old_tensors | (tensors or {})).items() if t is not None}
    settings = {key: v for key, v in (old_config | (config or {})).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: t.contiguous() for name, t in new.items()}, folder / NAMES[family])
    return str(folder)


NAMES = {block: "model.safetensors", medusa: "medusa_lm_head.safetensors"}
EMPTY = torch.zeros
DFLASH = {"mask_token_id": 95, "target_layer_ids": [0, 1, 2]}

BLOCKS = {
    "has no tensor 'layers.1.mlp.up_proj.weight'": {"tensors": {"layers.1.mlp.up_proj.weight": None}},
    "tensors that a head of this format does not have: \"layers.2.mlp.up_proj.weight\"": {
        "tensors": {"layers.2.mlp.up_proj.weight": EMPTY(64, 32)}
    },
    "tensor 'norm.weight' .* has the shape \\[31\\], but must have \\[32\\]": {
        "tensors": {"norm.weight": EMPTY(31)}
    },
    "is a DSpark head: its tensor 'markov_head.markov_w1.weight'": {
        "tensors": {"markov_head.markov_w1.weight": EMPTY(96, 8)}
    },
    "is a DSpark head: its tensor 'confidence_head.proj.bias'": {
        "tensors": {"confidence_head.proj.bias": EMPTY(1)}
    },
    "is a Domino head: its tensor 'prefix_gru.weight_ih_l0'": {
        "tensors": {"prefix_gru.weight_ih_l0": EMPTY(3)}
    },
    "is a head of type 'domino'": {"config": {"dflash_config": {**DFLASH, "projector_type": "domino"}}},
    "is a head of type 'eagle3'": {"config": {"speculators_model_type": "eagle3"}},
    "is no block head, each of which has a tensor 'fc.weight'": {"tensors": {"fc.weight": None}},
    "does not state 'block_size'": {"config": {"block_size": None}},
    "does not state 'mask_token_id'": {"config": {"dflash_config": {"target_layer_ids": [0, 1, 2]}}},
    "mask_token_id = 96, but .* embeds the tokens 0..95": {
        "config": {"dflash_config": {**DFLASH, "mask_token_id": 96}}
    },
    "block_size = 1 and": {"config": {"block_size": 1}},
    "reads the boundaries \\[1, 2, 5\\], but the target's are 0..4": {
        "config": {"dflash_config": {**DFLASH, "target_layer_ids": [0, 1, 4]}}
    },
    "reads the boundaries \\[1, 2, 2\\]": {
        "config": {"dflash_config": {**DFLASH, "target_layer_ids": [0, 1, 1]}}
    },
    "reads the boundaries \\[1, 2, 'x'\\]": {
        "config": {"dflash_config": {**DFLASH, "target_layer_ids": [0, 1, "x"]}}
    },
    "tensor 'fc.weight' .* has the shape \\[32, 96\\], but must have \\[32, 64\\]": {
        "config": {"dflash_config": {**DFLASH, "target_layer_ids": [0, 1]}}
    },
    "is a head for a target of 36 layers, but the target has 4": {"config": {"num_target_layers": 36}},
    "is a head for a vocabulary of 151,936 tokens, but the target has 96": {
        "config": {"vocab_size": 151936}
    },
    "is a head of width 64 .*, but the target's is 32": {"config": {"hidden_size": 64}},
    "cannot share the target's embedding and head": {
        "options": {"layer_ids": (0,)},
        "config": {"hidden_size": 16, "dflash_config": {**DFLASH, "target_layer_ids": [0]}},
        "tensors": "adapted",
    },
    "layers of sliding attention": {
        "config": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0,
                   "layer_types": ["sliding_attention"] * 2}
    },
    "hidden_act = 'gelu'": {"config": {"hidden_act": "gelu"}},
    "config.json of .* is not that of a head": {"config": {"model_type": "unheard of"}},
    "4 heads of queries and 3 of keys": {"config": {"num_key_value_heads": 3}},
    "has rows for 40 of 96 tokens, but no tensor 'd2t'": {
        "options": {"layout": "speculators", "small": True}, "tensors": {"d2t": None, "t2d": None},
    },
    "'d2t' of .* leads to tokens": {
        "options": {"layout": "speculators", "small": True}, "tensors": {"d2t": torch.arange(40) * 3},
    },
    "has no tensor 'lm_head.weight'": {
        "options": {"layout": "speculators", "small": True}, "tensors": {"lm_head.weight": None},
    },
    "does not state 'aux_hidden_state_layer_ids'": {
        "options": {"layout": "speculators"}, "config": {"aux_hidden_state_layer_ids": None},
    },
}  # fmt: skip


@pytest.mark.parametrize("message", BLOCKS)
def test_block_drafters_that_do_not_fit(message, tmp_path):
    case = BLOCKS[message]
    tensors = case.get("tensors", {})
    if tensors == "adapted":
        tensors = narrow()
    source = changed(tmp_path, tensors, case.get("config"), **case.get("options", {}))
    with pytest.raises(LoadError, match=message) as refused:
        load_block(source, target())
    assert len(str(refused.value)) < 420


def narrow():
    """Tensors of a head that is half as wide as the target, with an adapter but no embedding."""
    tensors = {
        "fc.weight": EMPTY(16, 16), "hidden_norm.weight": EMPTY(16), "norm.weight": EMPTY(16),
        "hidden_dim_adapter.proj.weight": EMPTY(16, 32),
    }  # fmt: skip
    for i in range(2):
        name = f"layers.{i}"
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = EMPTY(rows, 16)
        tensors[f"{name}.self_attn.o_proj.weight"] = EMPTY(16, 32)
        tensors |= {f"{name}.mlp.{part}_proj.weight": EMPTY(64, 16) for part in ("gate", "up")}
        tensors[f"{name}.mlp.down_proj.weight"] = EMPTY(16, 64)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = EMPTY(16)
    return tensors


def test_a_narrow_head_with_an_adapter_and_all_it_needs(tmp_path):
    """An adapter maps every feature by one matrix; embedding and head are then its own."""
    own = {"embed_tokens.weight": EMPTY(96, 16), "lm_head.weight": EMPTY(96, 16)}
    tensors = {name: torch.randn_like(t) for name, t in (narrow() | own).items()}
    config = {"hidden_size": 16, "dflash_config": {**DFLASH, "target_layer_ids": [0]}}
    head = load_block(changed(tmp_path, tensors, config, layer_ids=(0,)), target())
    assert "own head; own embedding" in str(head.contract)
    text = head.new_text()
    head.read(text, torch.randn(3, 1, 32))
    assert head(text, 5, [], 5).shape == (5, 96)


MEDUSAS = {
    "has no tensor '2.0.linear.bias'": {"tensors": {"2.0.linear.bias": None}},
    "has no tensor '1.1.weight'": {"tensors": {"1.1.weight": None}},
    "does not have: \"norm.weight\"": {"tensors": {"norm.weight": EMPTY(32)}},
    "tensor '0.1.weight' .* has the shape \\[40, 32\\], but must have \\[96, 32\\]": {
        "tensors": {"0.1.weight": EMPTY(40, 32)}
    },
    "tensor '0.0.linear.weight' .* has the shape \\[64, 64\\], but must have \\[32, 32\\]": {
        "tensors": {"0.0.linear.weight": EMPTY(64, 64)}
    },
}  # fmt: skip


@pytest.mark.parametrize("message", MEDUSAS)
def test_medusa_heads_that_do_not_fit(message, tmp_path):
    source = changed(tmp_path, MEDUSAS[message]["tensors"], family=medusa)
    with pytest.raises(LoadError, match=message):
        load_medusa(source, target())


def test_a_number_of_heads_that_the_tensors_contradict_is_told(tmp_path):
    source = changed(tmp_path, family=medusa, config={"medusa_num_heads": 2})
    contract = str(load_medusa(source, target()).contract)
    assert "config.json says medusa_num_heads = 2, the tensors count" in contract


@pytest.mark.parametrize("load", [load_medusa, load_block])
def test_a_whole_model_is_no_head(load, tmp_path):
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=r"is no (medusa|block) head, each of which has a tensor"):
        load(str(tmp_path), target())


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "it ran")


@pytest.mark.parametrize("load", [load_medusa, load_block])
def test_a_pickle_never_runs_code(load, tmp_path):
    canary = tmp_path / "canary"
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    name = "medusa_lm_head.pt" if load is load_medusa else "pytorch_model.bin"
    for file in (pickle.dumps({"0.0.linear.weight": Canary(canary)}), None):
        if file is None:
            torch.save({"0.0.linear.weight": Canary(canary)}, folder / name)
        else:
            (folder / name).write_bytes(file)
        with pytest.raises(LoadError, match="no code in a pickle is ever run"):
            load(str(folder), target())
        assert not canary.exists()
    torch.load(folder / name, weights_only=False)
    assert canary.exists()  # it would have run


@pytest.mark.parametrize("load", [load_medusa, load_block])
def test_what_is_no_head_or_no_target(load, tmp_path):
    with pytest.raises(LoadError, match="there is no head 'nobody/nothing'"):
        load("nobody/nothing", target())
    with pytest.raises(UnsupportedModel, match="needs a transformers model as target"):
        load(str(tmp_path), TabularModel(random_table(3, 0), 3))


def test_the_causal_mask_can_be_chosen(tmp_path):
    block.checkpoint(tmp_path)
    assert not load_block(str(tmp_path), target()).rules.causal
    assert load_block(str(tmp_path), target(), causal=True).rules.causal


def test_default_layers_are_the_authors(tmp_path):
    """36 layers and 5 of the draft: 1, 9, 17, 25, 33, which are boundaries one higher."""
    model = TransformersModel(build("llama", **{**SMALL, "num_hidden_layers": 36}))
    block.checkpoint(tmp_path, layer_ids=None, layers=5, target_layers=36)
    assert load_block(str(tmp_path), model).contract.reads == Features((2, 10, 18, 26, 34))


def test_older_readers_find_how_positions_of_a_block_turn(tmp_path):
    scaled = {"rope_type": "linear", "factor": 4.0}
    old = {"rope_theta": 1e6, "rope_scaling": scaled, "rope_parameters": None}
    head = load_block(changed(tmp_path / "read", config=old), target())
    save_block(head, tmp_path / "written")
    settings = json.loads((tmp_path / "written/config.json").read_text())
    assert (settings["rope_theta"], settings["rope_scaling"]) == (1e6, scaled)
    again = load_block(str(tmp_path / "written"), target())
    assert torch.equal(head.rotary.inv_freq, again.rotary.inv_freq)


def test_the_vocabulary_of_a_block_is_that_of_the_logits(tmp_path):
    """The target's embedding may have further rows, which are padding."""
    model = TransformersModel(build("llama", num_hidden_layers=4), vocab_size=90)
    tables = {"d2t": torch.full((40,), 50), "t2d": torch.arange(90) >= 50}
    source = changed(tmp_path / "read", tables, layout="speculators", small=True, layer_ids=(1, 3))
    head = load_block(source, model)
    assert head.kept.tolist() == list(range(50, 90))
    save_block(head, tmp_path / "written")
    assert torch.equal(load_block(str(tmp_path / "written"), model).kept, head.kept)


def test_a_head_takes_the_dtype_of_its_target(tmp_path):
    block.checkpoint(tmp_path / "block", layout="speculators", small=True)
    medusa.checkpoint(tmp_path / "medusa")
    model = target(dtype=torch.bfloat16)
    for head in (
        load_block(str(tmp_path / "block"), model),
        load_medusa(str(tmp_path / "medusa"), model),
    ):
        assert {weight.dtype for weight in head.parameters()} == {torch.bfloat16}
