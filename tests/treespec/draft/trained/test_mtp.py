"""Modules for multi-token prediction: what is read of a target's files, and what is refused."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from head_formats import FORMATS, head_of
from heads import files, mtp, mtp_target
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import Mtp
from treespec.draft.trained.mtp_files import load_mtp, save_mtp
from treespec.errors import InvalidArgument, LoadError, UnsupportedModel
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget

TEXT = [5, 17, 80, 2, 41, 63, 9, 33]
MODULE = "model-00002-of-00002.safetensors"
EXPERTS = "model.layers.2.mlp.experts"


def rows(head):
    """Rows over a text with states of tokens alone."""
    head = head.fresh()
    head.prefill(torch.tensor(TEXT[:3]))
    return head.run(torch.tensor(TEXT[3:]), tuple(range(-1, 4))).logits


def changed(folder, change, file=MODULE):
    """Rewrite the tensors of a module."""
    tensors = load_file(folder / file)
    change(tensors)
    (folder / file).unlink()  # it may still be mapped into memory
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / file)
    if (index := folder / "model.safetensors.index.json").exists():
        names = dict.fromkeys(tensors, file)
        index.write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("mtp")])
def test_greedy_texts_are_those_of_generate(name, tmp_path):
    model, cold = FORMATS[name].target(), Sampling(temperature=0.0)
    with model.as_transformers() as plain:
        ids = torch.tensor([TEXT])
        right = plain.generate(ids, do_sample=False, max_new_tokens=60)[0, len(TEXT) :].tolist()
    drafter = Mtp(head_of(name, tmp_path), TreeShape.expansion([3, 2, 1]), Law.DETERMINISTIC, cold)
    steps = decode(
        ModelTarget(model), drafter, verify.greedy, torch.tensor(TEXT), sampling=cold,
        coins=TorchCoins(0), max_new_tokens=60,
    )  # fmt: skip
    assert [token for step in steps for token in step.tokens] == right


def test_a_module_stands_in_the_files_of_its_target(tmp_path):
    """It is found where the target was read from, and no other file is opened."""
    mtp_target.save(tmp_path, "glm")
    model = TransformersModel(AutoModelForCausalLM.from_pretrained(tmp_path).eval())
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert torch.equal(rows(load_mtp(None, model)), rows(load_mtp(str(tmp_path), model)))


def test_experts_may_stand_in_one_tensor(tmp_path):
    mtp_target.save(tmp_path, "deepseek")
    model = FORMATS["mtp, deepseek"].target()
    right = rows(load_mtp(str(tmp_path), model))

    def fuse(tensors):
        def all_of(part):
            return torch.stack([tensors.pop(f"{EXPERTS}.{i}.{part}.weight") for i in range(4)])

        gates, ups = all_of("gate_proj"), all_of("up_proj")
        tensors[f"{EXPERTS}.gate_up_proj"] = torch.cat([gates, ups], dim=1)
        tensors[f"{EXPERTS}.down_proj"] = all_of("down_proj")

    changed(tmp_path, fuse)
    assert torch.equal(rows(load_mtp(str(tmp_path), model)), right)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("mtp")])
def test_a_module_that_was_written_is_the_same(name, tmp_path):
    """Its tensors are, to the last bit; where columns changed places, rows are sums in another order."""
    form, model = FORMATS[name], FORMATS[name].target()
    head = head_of(name, tmp_path / "read", model)
    save_mtp(head, tmp_path / "written")
    again = form.read(tmp_path / "written", model)
    assert again.contract == replace(head.contract, order=("embedding", "state"))
    torch.testing.assert_close(rows(again), rows(head), rtol=0, atol=1e-5)
    kept, found = (one.net.state_dict() for one in (head, again))
    moved = {"model.combine.project.weight"} if head.contract.order[0] == "state" else set()
    assert kept.keys() == found.keys()
    assert all(torch.equal(kept[key], found[key]) for key in kept.keys() - moved)
    save_mtp(again, tmp_path / "twice")
    for file in ("config.json", "model.safetensors"):
        once, twice = (tmp_path / place / file for place in ("written", "twice"))
        assert once.read_bytes() == twice.read_bytes()
    with pytest.raises(InvalidArgument, match="is not empty"):
        save_mtp(head, tmp_path / "written")


def test_a_copy_of_the_targets_matrices_is_not_written(tmp_path):
    random, model = files.Random(1), FORMATS["mtp, glm"].target()
    net = model.model
    copies = {
        "embedding": net.get_input_embeddings().weight.detach(),
        "head": net.get_output_embeddings().weight.detach(),
    }
    mtp.checkpoint(tmp_path / "copies", "glm", **copies)
    head = load_mtp(str(tmp_path / "copies"), model)
    assert (head.contract.embedding, head.contract.head) == ("target's", "target's")
    save_mtp(head, tmp_path / "written")
    names = load_file(tmp_path / "written" / "model.safetensors")
    assert not [name for name in names if "embed" in name or "lm_head" in name]
    mtp.checkpoint(tmp_path / "own", "glm", head=random.head(96))
    with pytest.raises(InvalidArgument, match="its own head cannot be written"):
        save_mtp(load_mtp(str(tmp_path / "own"), model), tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_module_may_have_an_embedding_and_a_head_of_its_own(tmp_path):
    random, model = files.Random(1), FORMATS["mtp, glm"].target(torch.float64)
    own = {"embedding": random.embedding(96), "head": random.head(96)}
    mtp.checkpoint(tmp_path, "glm", **own)
    head = load_mtp(str(tmp_path), model)
    assert "own head; own embedding" in str(head.contract)
    scaled = TransformersModel(deepcopy(model.model))
    scaled.model.config.logits_scaling = 8.0
    assert load_mtp(str(tmp_path), scaled).contract == head.contract
    mtp_target.save(tmp_path / "shared", "glm")
    assert "without the target's" in str(load_mtp(str(tmp_path / "shared"), scaled).contract)
    states = random.normal(7, 1, 32).double()
    right = FORMATS["mtp, glm"].rows(tmp_path, model, TEXT, states, [])
    head.give(head.fused(states), anew=True)
    head.prefill(torch.tensor(TEXT[:3]))
    found = head.run(torch.tensor(TEXT[3:]), tuple(range(-1, 4))).logits
    assert bool(((found - right[2:]).norm(dim=-1) <= 1e-5 * right[2:].norm(dim=-1)).all())


@pytest.mark.parametrize("name", ["mtp, glm", "mtp, qwen3_next", "mtp, mimo", "mtp, mimo, pre"])
def test_it_reads_the_state_after_the_final_norm_or_before_it(name, tmp_path):
    model = FORMATS[name].target()
    seen = []
    with model.as_transformers() as plain:
        part = plain.model.layers[-1] if name.endswith("pre") else plain.model.norm
        handle = part.register_forward_hook(lambda module, args, output: seen.append(output))
        plain(torch.tensor([TEXT]))
        handle.remove()
    lender = model.fresh()
    lender.lend(head_of(name, tmp_path).contract.reads)
    torch.testing.assert_close(lender.prefill(torch.tensor(TEXT)), seen[0].transpose(0, 1))


def test_the_order_can_be_given(tmp_path):
    head = head_of("mtp, mimo", tmp_path)
    other = load_mtp(str(tmp_path), FORMATS["mtp, mimo"].target(), state_first=False)
    assert head.contract.order == ("state", "embedding")
    assert other.contract.order == ("embedding", "state")
    assert not torch.allclose(rows(head), rows(other))


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, *shape, dtype=torch.float32):
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("model.layers.2.hnorm.weight"), "no tensor 'model.layers.2.hnorm.weight'"),
        (drop(f"{EXPERTS}.3.up_proj.weight"), rf"no tensor '{EXPERTS}.3.up_proj.weight'"),
        (put("model.layers.2.eh_proj.weight", 32, 32), r"shape \[32, 32\], but must have \[32, 64\]"),
        (put("model.layers.2.self_attn.q_norm.weight", 8), "does not have: .*q_norm.weight"),
        (put("model.layers.3.enorm.weight", 32), "does not have: .*layers.3.enorm.weight"),
        (put("model.layers.2.self_attn.o_proj.weight_scale_inv", 1), "quantised to FP8"),
        (put("model.layers.2.eh_proj.weight", 32, 64, dtype=torch.int8), "eh_proj.weight' .* int8: quan"),
        (drop("model.layers.2.eh_proj.weight"), "no module for multi-token prediction: none of .*eh_proj"),
    ],
)  # fmt: skip
def test_other_tensors_are_refused_by_name(change, message, tmp_path):
    mtp_target.save(tmp_path, "deepseek")
    changed(tmp_path, change)
    with pytest.raises(LoadError, match=message):
        load_mtp(str(tmp_path), FORMATS["mtp, deepseek"].target())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"model_type": "nothing"},
            UnsupportedModel,
            "knows no layers of the model_type 'nothing'",
        ),
        ({"num_hidden_layers": None}, LoadError, "num_hidden_layers = None in config.json"),
        ({"hidden_size": 64}, LoadError, "of width 64 .*the target's is 32"),
        ({"num_attention_heads": "four"}, LoadError, "not that of a glm4_moe model"),
    ],
)
def test_other_configs_are_refused(change, error, message, tmp_path):
    mtp.checkpoint(tmp_path, "glm", **change)
    with pytest.raises(error, match=message):
        load_mtp(str(tmp_path), FORMATS["mtp, glm"].target())


def test_a_module_that_gives_no_numbers_is_named(tmp_path):
    mtp_target.save(tmp_path, "glm")
    changed(tmp_path, lambda tensors: tensors["model.layers.2.shared_head.norm.weight"].fill_(3e38))
    with pytest.raises(UnsupportedModel, match=rf"the head '{tmp_path}' cannot run: .* infinite"):
        load_mtp(str(tmp_path), FORMATS["mtp, glm"].target())


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_known_must_be_given(tmp_path):
    model = FORMATS["mtp, mimo"].target()
    with pytest.raises(LoadError, match="was not read from files: give the folder"):
        load_mtp(None, model)
    with pytest.raises(InvalidArgument, match="state = 'both'"):
        load_mtp(str(tmp_path), model, state="both")
