"""The references of MTP modules and of the two-way block drafter, against the classes of transformers."""

import json

import pytest
import torch
import transformers
from heads import block, files, mtp
from heads.mtp_target import FAMILIES, save
from transformers.modeling_layers import MtpModel

TOKENS = [5, 17, 80, 2, 41, 63, 9, 33]
DRAFTED = [12, 90, 7]


@pytest.mark.parametrize("layout", FAMILIES)
def test_mtp_is_that_of_transformers(tmp_path, monkeypatch, layout):
    kind = save(tmp_path, layout)
    monkeypatch.setattr(
        kind,
        "_keys_to_ignore_on_load_unexpected",
        [r"model\.layers\.2.*", r"^mtp.*"],
        raising=False,
    )
    model = kind.from_pretrained(tmp_path, dtype=torch.float32).eval()
    if layout == "qwen3_next":
        model.config.mtp_layer_types = ["full_attention"]
    module = MtpModel.from_pretrained(model).eval()
    tensors, config = files.read(tmp_path)
    with torch.no_grad():
        text = model.model(torch.tensor([TOKENS[:-1]])).last_hidden_state
        states, tokens = text, torch.tensor([TOKENS[1:] + DRAFTED])
        while True:
            length = states.shape[1]
            positions = 1 + torch.arange(length)[None]
            outputs = module.forward_layer(0, states, positions, None, input_ids=tokens[:, :length])
            if length == tokens.shape[1]:
                break
            states = torch.cat((states, outputs[:, -1:]), 1)
        expected = module._project_to_logits(outputs)[0]
    embedding = model.get_input_embeddings().weight.detach()
    head = model.lm_head.weight.detach()
    ours = mtp.rows(tensors, config, TOKENS, text[0], DRAFTED, embedding, head)
    assert len(set(ours.argmax(-1).tolist())) > 3
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_that_of_transformers(tmp_path, causal):
    """Its class is two-way; a mask makes it causal."""
    block.checkpoint(tmp_path, "transformers")
    kind = transformers.MuseGlimmerAssistantModel
    model = kind.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tensors, config = files.read(tmp_path)
    random = files.Random(5)
    features, embedding, head = random.normal(7, 3, 32), random.embedding(96), random.head(96)
    noise = embedding[[11] + [95] * 5]
    seen = torch.ones(1, 1, 6, 13, dtype=torch.bool).tril(7)
    mask = {"full_attention": seen} if causal else None
    with torch.no_grad():
        outputs = model(noise[None], features.flatten(1)[None], attention_mask=mask)
    expected = outputs.last_hidden_state[0, 1:] @ head.T
    config["causal"] = causal
    ours = block.rows(tensors, config, features, 11, embedding, head)
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()


def test_names_that_transformers_gives_an_mtp_checkpoint_are_these(tmp_path):
    """A target saved by transformers has its experts one by one, as the authors' files have them."""
    save(tmp_path, "deepseek")
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    ours = {name.replace("layers.2.", "") for name in places if "layers.2." in name}
    theirs = {name.replace("layers.1.", "") for name in places if "layers.1." in name}
    assert theirs < ours
