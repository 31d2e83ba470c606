"""`treespec draft check`: a head that states other conventions than it was trained with is found out."""

import json
import re

import pytest
import torch
from heads import files, mtp
from marginal_heads import fitted, states_of
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from treespec.draft.trained.eagle3_files import conventions, load_eagle3
from treespec.experiments.cli.main import app
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.head_check import HeadCheck, Tried, family_of
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import load_pair

TRUE, SAID = [1, 2, 4], [2, 3, 5]
"""Boundaries that the planted head fits, and those that its config.json says."""


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded", "none")


def texts(pair):
    """Greedy texts of the target after the prompts of the command."""
    prompts = embedded_prompts(pair.tokenizer, 4, 96)
    with pair.target.as_transformers() as plain:
        return [
            plain.generate(torch.tensor([p.ids]), do_sample=False, max_new_tokens=50)[0].tolist()
            for p in prompts
        ]


@pytest.fixture(scope="module")
def planted(pair, tmp_path_factory):
    """An EAGLE-3 head of random layers, whose last matrix fits the texts at the boundaries `TRUE`."""
    folder, random = tmp_path_factory.mktemp("planted"), files.Random(0)
    width, vocab = pair.target.model.config.hidden_size, pair.target.vocab_size
    layer = "midlayer"
    tensors = {
        "fc.weight": random.linear(width, 3 * width),
        "norm.weight": random.gain(width),
        "lm_head.weight": random.head(vocab, width),
        **random.attention(f"{layer}.self_attn", width, inputs=2 * width),
        **random.mlp(f"{layer}.mlp", width),
        **{
            f"{layer}.{name}.weight": random.gain(width)
            for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        },
    }
    config = {
        **files.LAYER, "hidden_size": width, "vocab_size": vocab, "head_dim": 8,
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": vocab,
        "max_position_embeddings": pair.target.max_length,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": SAID, "use_aux_hidden_state": True},
    }  # fmt: skip
    files.write(folder, config, tensors)
    head = load_eagle3(str(folder), pair.target, boundaries=TRUE)
    head.net.lm_head = nn.Identity()
    outputs, wanted = [], []
    for ids in texts(pair):
        head.give(head.fused(states_of(pair.target, head.contract.reads, ids[:-1])), anew=True)
        head.prefill(torch.tensor(ids[:1]))
        rows = head.run(torch.tensor(ids[1:-1]), tuple(range(-1, len(ids) - 3))).logits
        outputs.append(rows[:, :width])
        wanted += ids[2:]
    tensors["lm_head.weight"] = fitted(torch.cat(outputs), wanted, vocab).weight
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["draft", "check", *map(str, arguments)])


def test_a_head_that_states_wrong_boundaries_is_found_out(planted):
    """Each boundary is one too high: the head loads, and the target refuses its drafts."""
    found = run(planted, "--target", "embedded", "--json")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert data["contract"].startswith("eagle3: reads boundaries 2, 3, 5;")
    stated, *others = data["rows"]
    assert stated["keys"] == {}
    best = max(others, key=lambda row: row["tokens_per_step"])
    assert best["keys"]["boundaries"] == TRUE
    assert best["tokens_per_step"] > stated["tokens_per_step"] + 0.3
    assert best["right"] == sorted(best["right"], reverse=True)
    assert "write `boundaries: [1, 2, 4], norm_output: " in data["warning"]
    assert len(data["rows"]) == 4  # boundaries 3, 4 and 6 do not exist


def test_a_head_that_states_its_boundaries_is_not_blamed(planted):
    source = f"{{source: eagle3, boundaries: {TRUE}}}"
    found = run(planted, "--target", "embedded", "--source", source, "--tokens", 120)
    assert found.exit_code == 0, found.output
    assert "eagle3: reads boundaries 1, 2, 4;" in found.stdout
    assert "no other conventions are better than the stated ones" in " ".join(found.stdout.split())
    assert "as stated" in found.stdout


def test_a_head_is_written_for_other_programs(planted, tmp_path):
    arguments = ["draft", "export", str(planted), str(tmp_path / "out"), "--target", "embedded"]
    source = ["--source", f"{{source: eagle3, boundaries: {[2, 1, 4]}}}"]
    written = CliRunner().invoke(app, [*arguments, *source])
    assert written.exit_code == 0, written.output
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert set(stored) == set(load_file(planted / "model.safetensors"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 1, 4]
    again = CliRunner().invoke(app, [*arguments, *source])
    assert again.exit_code == 2
    assert "is not empty" in again.output


def test_a_head_of_another_text_is_of_no_use(planted, pair, tmp_path):
    tensors = load_file(planted / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(17, 0).contiguous()
    files.write(tmp_path, json.loads((planted / "config.json").read_text()), tensors)
    found = run(tmp_path, "--target", "embedded", "--tokens", 40, "-q")
    assert found.exit_code == 0, found.output
    assert "warning: by no conventions does the target keep more than 1.0" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere/at/all",), "there is no head 'nowhere/at/all'"),
        (("EMPTY",), "neither a folder with a config.json"),
        (("PLAIN",), "does not say of which family the head is: give --source eagle, eagle3"),
        (("PLAIN", "--source", "eagle"), "is no eagle head"),
        (("OTHER",), "of width 32 .*the target's is 384"),
        (("PLAIN", "--source", "lookup"), "is no trained head: medusa, block"),
        (("PLAIN", "--source", "nothing"), "is no trained head: medusa, block"),
        (("PLAIN", "--source", "{source"), "--source is not YAML"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, said, tmp_path):
    (tmp_path / "EMPTY").mkdir()
    plain = {"model_type": "llama", **files.LAYER}
    files.write(tmp_path / "PLAIN", plain, {"model.norm.weight": torch.ones(32)})
    mtp.checkpoint(tmp_path / "OTHER", "glm", target_layers=5)
    name, *options = arguments
    head = tmp_path / name if name.isupper() else name
    found = run(head, "--target", "embedded", *options)
    assert found.exit_code == 2, found.output
    assert re.search(said, " ".join(found.stderr.split()))
    assert found.stderr.count("\n") <= 3
    assert "Traceback" not in found.stderr


def test_the_family_is_read_off_the_files(tmp_path):
    for i, (config, family) in enumerate(
        (
            ({"speculators_model_type": "eagle3"}, "eagle3"),
            ({"speculators_model_type": "dflash"}, "block"),
            ({"speculators_model_type": "mtp"}, "mtp"),
            ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
            ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
            ({"draft_vocab_size": 9}, "eagle3"),
            ({"dflash_config": {}}, "block"),
            ({"medusa_num_heads": 3}, "medusa"),
            ({"num_nextn_predict_layers": 1}, "mtp"),
        )
    ):
        files.write(tmp_path / str(i), config, {"x": torch.ones(1)})
        assert family_of(str(tmp_path / str(i))) == family
    files.write(tmp_path / "none", {}, {"x": torch.ones(1)})
    with pytest.raises(ConfigError, match="give --source"):
        family_of(str(tmp_path / "none"))


def tried(label, *accepted):
    return Tried(label, {"state": label}, accepted)


def test_a_warning_takes_more_than_chance():
    stated = tried("post", *[0, 1, 1, 2] * 20)
    near, far = tried("near", *[1, 1, 1, 2] * 20), tried("far", *[3, 2, 2, 2] * 20)
    for others, said in (((near,), None), ((near, far), "state: far"), ((), None)):
        warning = HeadCheck("mtp: ...", "mtp", (stated, *others)).warning
        assert warning is None if said is None else said in str(warning)
    assert "leaves nothing open" in HeadCheck("eagle: ...", "eagle", (stated,)).verdict


def test_boundaries_that_do_not_exist_are_not_tried(planted, pair):
    head = load_eagle3(str(planted), pair.target, boundaries=(0, 2, 5))
    keys = conventions(head.contract, pair.target.layer_count).values()
    assert [key["boundaries"] for key in keys] == [[0, 2, 5]] * 2
