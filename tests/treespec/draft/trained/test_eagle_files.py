"""EAGLE checkpoints that do not fit, and what is said of them before anything runs."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from head_formats import FORMATS, target
from heads import eagle, eagle3, files
from safetensors.torch import save_file
from tiny_models import build
from torch import distributed
from torch.distributed.tensor import DeviceMesh, distribute_tensor

from treespec.draft.trained import eagle3_files, eagle_files, mtp_files
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.draft.trained.eagle_files import load_eagle
from treespec.draft.trained.head_net import HeadNet
from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import LoadError, UnsupportedModel
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel


def changed(folder, config=None, tensors=None, without=()):
    """Write a checkpoint again, with changes."""
    old, settings = files.read(folder)
    for file in folder.iterdir():
        file.unlink()
    made = {name: tensor for name, tensor in (old | (tensors or {})).items() if name not in without}
    save_file(
        {name: tensor.contiguous() for name, tensor in made.items()}, folder / "model.safetensors"
    )
    settings = {k: v for k, v in (settings | (config or {})).items() if k not in without}
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_the_facts_of_a_format_are_read_from_its_settings(tmp_path):
    eagle.checkpoint(tmp_path / "one")
    first = load_eagle(str(tmp_path / "one"), target()).contract
    assert (first.reads, first.order) == (Features(final="post"), ("embedding", "state"))
    eagle3.checkpoint(tmp_path / "in", layer_ids=(2, 0, 3))
    assert load_eagle3(str(tmp_path / "in"), target()).contract.reads.boundaries == (2, 0, 3)
    # A first id of 1 is the output of layer 1 (sgl-project/sglang#25454).
    eagle3.checkpoint(tmp_path / "out", "nvidia", layer_ids=(1, 0, 3))
    assert load_eagle3(str(tmp_path / "out"), target()).contract.reads.boundaries == (2, 1, 4)
    given = load_eagle3(str(tmp_path / "out"), target(), boundaries=(0, 1, 3), norm_output=True)
    assert given.contract.reads.boundaries == (0, 1, 3)
    assert "recycles the state after the norm" in str(given.contract)
    with pytest.raises(
        LoadError, match=r"does not name the layers .* are 2, 2, 1: give `boundaries`"
    ):
        load_eagle3(
            changed(tmp_path / "in", without=("eagle_aux_hidden_state_layer_ids",)), target()
        )


NORMS = {"input_norm.weight": torch.ones(96)} | {
    f"fc_norm.{i}.weight": torch.ones(32) for i in range(3)
}


@pytest.mark.parametrize(
    ("config", "tensors", "without", "message"),
    [
        ({"target_hidden_size": 48}, {}, (), "states of width 48"),
        ({"hidden_size": 64}, {}, (), r"width 64 .*target's is 32"),
        ({}, {}, ("hidden_size",), "does not state 'hidden_size'"),
        ({"num_attention_heads": "4"}, {}, (), "num_attention_heads = \"4\", but must be of type int"),
        ({}, {}, ("midlayer.hidden_norm.weight",), "'layers.0.hidden_norm.weight'"),
        ({}, {"midlayer.mlp.odd": torch.ones(2)}, (), 'does not have: "midlayer.mlp.odd"'),
        ({}, {"fc.weight": torch.ones(32, 64)}, (), r"'fc.weight' .* shape \[32, 64\], but .* \[32, 96\]"),
        ({"norm_before_fc": True}, {}, (), "no tensor 'input_norm.weight'"),
        ({"draft_vocab_size": 20}, {}, (), r"'d2t' .* \[40\]"),
        ({}, {}, ("d2t",), "rows for 40 of 96 tokens, but no tensor 'd2t'"),
        ({}, {"d2t": torch.full((40,), 90)}, (), "'d2t' .* leads to tokens 90 to 129.*offsets"),
        ({}, {"d2t": -torch.arange(40)}, (), "leads to the same token twice"),
        ({}, {"t2d": torch.ones(96, dtype=torch.bool)}, (), "'d2t' and 't2d' .* different tokens"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 9]}, {}, (), "boundary 9, but .* 4 layers"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, {}, (), "must be of type list"),
        ({"num_attention_heads": 5}, {}, (), "5"),
        ({"hidden_act": "nope"}, {}, (), "hidden_act = 'nope', but must be an activation"),
        ({"hidden_act": ["silu"]}, {}, (), "hidden_act = .*must be of type str"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 2]}, {}, (),
         r"layer_ids = \[2, 2, 2\], .* each boundary may stand once"),
        ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, {}, (), r"layer_ids = \[-1, 2, 3\].* least 0"),
        ({"norm_before_fc": True, "fc_norm": True}, NORMS, (), "norm_before_fc and fc_norm are both true"),
        ({}, {"fc.weight": torch.ones(32, 96, dtype=torch.int8)}, (), "'fc.weight' .* int8: quantised"),
        ({}, {"fc.weight": torch.ones(32, 96).to(torch.float8_e4m3fn)}, (),
         "'fc.weight' .* dtype float8_e4m3fn: quantised weights are not read"),
        ({}, {"d2t": torch.zeros(40) + 0.5}, (), "'d2t' .* dtype float32: it must hold integers"),
        ({}, {"d2t": torch.zeros(40, dtype=torch.bool)}, (), "'d2t' .* bool: it must hold integers"),
        ({}, {"t2d": torch.ones(96)}, (), "'t2d' .* float32: it must hold flags"),
        ({"sliding_window": 16, "use_sliding_window": True}, {}, (), "layers of sliding attention"),
        ({"layer_types": ["sliding_attention"]}, {}, (), "layers of sliding attention"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path, config, tensors, without, message):
    eagle3.checkpoint(tmp_path, "specforge", layer_ids=(2, 1, 3))
    with pytest.raises(LoadError, match=message) as refused:
        load_eagle3(changed(tmp_path, config, tensors, without), target())
    assert "\n" not in str(refused.value)


def test_a_window_that_no_layer_has_is_no_window(tmp_path):
    eagle3.checkpoint(tmp_path, "specforge", layer_ids=(2, 1, 3))
    unused = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 28}
    assert load_eagle3(changed(tmp_path, unused), target())
    assert load_eagle3(changed(tmp_path, {"use_sliding_window": False}), target())


@pytest.mark.parametrize(("family", "load"), [(eagle, load_eagle), (eagle3, load_eagle3)])
def test_a_head_that_gives_no_numbers_is_named(family, load, tmp_path):
    family.checkpoint(tmp_path, **({"layer_ids": (2, 1, 3)} if family is eagle3 else {}))
    name = "layers.0.post_attention_layernorm.weight" if family is eagle else "norm.weight"
    source = changed(tmp_path, tensors={name: torch.full((32,), 3e38)})
    with pytest.raises(UnsupportedModel, match=rf"the head '{tmp_path}' cannot run: .* infinite"):
        load(source, target())
    source = changed(tmp_path, tensors={name: torch.full((32,), torch.nan)})
    with pytest.raises(LoadError, match=rf"'{name}' of '{tmp_path}' holds NaN"):
        load(source, target())


@pytest.mark.parametrize(("architecture", "key", "value", "what"), [
    ("gemma2", "final_logit_softcapping", 30.0, "softcap"),
    ("cohere", "logit_scale", 0.0625, "logit scale"),
    ("llama", "logits_scaling", 8.0, "logit scale"),
])  # fmt: skip
def test_what_the_head_of_the_target_lacks_is_told(architecture, key, value, what, tmp_path):
    eagle.checkpoint(tmp_path)
    model = TransformersModel(build(architecture))
    for now, told in ((value, True), (1.0, False), (None, False)):
        setattr(model.model.config, key, now)
        contract = str(load_eagle(str(tmp_path), model).contract)
        assert contract.endswith(f"; without the target's {what}") == told
        assert ("without" in contract) == told


def test_a_bias_that_the_file_promises_must_be_there(tmp_path):
    eagle.checkpoint(tmp_path)  # says nothing, which means true
    with pytest.raises(LoadError, match=r"no tensor 'fc.bias'"):
        load_eagle(changed(tmp_path, without=("fc.bias",)), target())
    assert load_eagle(changed(tmp_path, {"bias": False}, without=("fc.bias",)), target())


def test_a_whole_model_is_no_head(tmp_path):
    target().model.save_pretrained(tmp_path)
    for load in (load_eagle, load_eagle3):
        with pytest.raises(LoadError, match=r"is it a whole model"):
            load(str(tmp_path), target())
    with pytest.raises(LoadError, match="there is no head"):
        load_eagle(str(tmp_path / "missing"), target())
    with pytest.raises(LoadError, match="is a file"):
        load_eagle(str(tmp_path / "config.json"), target())


HOLDERS = {"eagle": eagle_files, "eagle3, specforge": eagle3_files, "mtp, deepseek": mtp_files}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", HOLDERS)
def test_only_what_was_read_is_moved_to_the_device_of_the_target(name, tmp_path, monkeypatch):
    """The network holds modules of the target, which stay where they are."""
    model = FORMATS[name].target()
    parts = replace(TargetParts.of(model), device=torch.device("meta"))
    monkeypatch.setattr(TargetParts, "of", lambda model: parts)
    monkeypatch.setattr(HOLDERS[name], "probed", lambda name, net, contract: net)
    monkeypatch.setattr(HeadNet, "to", lambda net, *args: pytest.fail("moves the target too"))
    net = FORMATS[name].read(FORMATS[name].write(tmp_path), model)
    assert {weight.device.type for weight in model.model.parameters()} == {"cpu"}
    shared = {id(weight) for weight in model.model.parameters()}
    own = [weight for weight in net.parameters() if id(weight) not in shared]
    assert {tensor.device.type for tensor in [*own, *net.buffers()]} == {"meta"}


def test_a_target_on_several_devices_is_refused(tmp_path):
    eagle.checkpoint(tmp_path)
    model = TransformersModel(build("llama"))
    model.model.hf_device_map = {"model.embed_tokens": 0, "lm_head": "cpu"}
    with pytest.raises(UnsupportedModel, match=r"on several devices \(0, cpu\)"):
        load_eagle(str(tmp_path), model)
    model.model.hf_device_map = {"": "cpu"}
    norm: Any = model.model.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.to("meta"))
    with pytest.raises(UnsupportedModel, match=r"on several devices \(cpu, meta\)"):
        load_eagle(str(tmp_path), model)


def test_a_sharded_target_is_refused(tmp_path):
    eagle.checkpoint(tmp_path)
    model = TransformersModel(build("llama"))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        norm: Any = model.model.model.norm
        norm.weight = torch.nn.Parameter(distribute_tensor(norm.weight, DeviceMesh("cpu", [0])))
        with pytest.raises(UnsupportedModel, match="sharded over several processes"):
            load_eagle(str(tmp_path), model)
    finally:
        distributed.destroy_process_group()
