"""Fingerprints of models: equal for equal weights, different for different weights."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec.models import fingerprint as module
from treespec.models.fingerprint import fingerprint


def llama(seed=0, **settings):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes | heads | settings))


def test_the_same_weights_have_one_fingerprint_in_either_dtype():
    stored = llama().bfloat16()
    said = fingerprint(stored)
    assert said.startswith("LlamaForCausalLM of 21,664 parameters, weights ")
    assert fingerprint(stored.float()) == said == fingerprint(stored.double())
    assert fingerprint(llama().bfloat16()) == said


def test_other_weights_have_another():
    said = {
        fingerprint(llama()),
        fingerprint(llama(1)),
        fingerprint(llama(tie_word_embeddings=True)),
    }
    tuned, late = llama(), llama()
    with torch.no_grad():
        tuned.model.layers[1].self_attn.v_proj.weight.mul_(1.01)  # one matrix only
        late.model.layers[1].self_attn.v_proj.weight[16:].mul_(
            1.01
        )  # the second half of one matrix only
    assert len({*said, fingerprint(tuned), fingerprint(late)}) == 5


def test_weights_that_are_not_here_have_none(monkeypatch):
    offloaded = llama()
    offloaded.model.layers[1].to("meta")
    assert fingerprint(offloaded) == ""
    monkeypatch.setattr(module.torch.distributed, "is_initialized", lambda: True)
    for processes, known in ((1, True), (2, False)):
        monkeypatch.setattr(module.torch.distributed, "get_world_size", lambda n=processes: n)
        assert bool(fingerprint(llama())) == known


@pytest.mark.usefixtures("without_shape_checks")
def test_a_model_knows_its_own():
    from treespec.models.transformers_model import TransformersModel

    model = llama()
    assert TransformersModel(model).fingerprint == fingerprint(model)
