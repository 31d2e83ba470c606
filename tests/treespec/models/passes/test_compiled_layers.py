"""Layers as compiled code compared with ordinary passes; how often they are compiled; what is merged.

Attention is the operator's reference on the CPU, so passes run in float64. What is compiled is traced,
and run as it is, but for `test_by_the_compiler`.
"""

import logging
import os
from functools import partial

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from treespec.errors import UnsupportedModel
from treespec.features import Features
from treespec.models.passes import compiled_layers as compiled_layers_file
from treespec.models.passes.compiled_layers import CompiledLayers
from treespec.models.passes.layers_trial import compiled_layers, require_compiled
from treespec.models.passes.merged_projections import merge_projections
from treespec.models.passes.static_pass import StaticRunner
from treespec.models.transformers_model import TransformersModel

TOKENS, PARENTS = torch.arange(3, 9), (-1, 0, 0, 1, 1, 2)
PROMPT = torch.arange(9)
EXACT = {"rtol": 0, "atol": 1e-12}
ROUNDED = {"rtol": 0, "atol": 1e-5}
"""Norms compute in float32 and round where the compiler likes."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter has no float64")


def both(load, name, **changes):
    """A model in float64, its ordinary runner, and one whose layers are compiled."""
    model = TransformersModel(load(name, num_hidden_layers=3, **changes).double())
    layers = CompiledLayers(model.model)
    return layers, model.fresh(), model.fresh(runner=partial(StaticRunner, layers=layers))


def ran(model, first=0, count=6):
    return model.run(TOKENS[first : first + count], PARENTS[: first + count], first).logits.clone()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [("llama", 1), ("qwen2", 1), ("qwen3", 1), ("gpt_neox", 1), ("gemma2", 2), ("phi3", 1)],
)
def test_logits_and_compilations(name, kinds, load):
    """Whole trees with padding, in parts, texts one after another, and after the cache has grown."""
    layers, ordinary, compiled = both(load, name, max_position_embeddings=1024)
    for prompt in (PROMPT, torch.arange(255) % 90):
        for each in (ordinary, compiled):
            each.prefill(prompt)
        expected = ran(ordinary)
        torch.testing.assert_close(ran(compiled), expected, **EXACT)
        parts = [ran(compiled, 0, 3), ran(compiled, 3, 3)]
        torch.testing.assert_close(torch.cat(parts), expected, **EXACT)
        for each in (ordinary, compiled):
            each.keep((0, 1, 4))
        torch.testing.assert_close(ran(compiled), ran(ordinary), **EXACT)
    assert compiled.runner.cache.capacity == 512
    assert layers.compilations == 2 * kinds  # for 4 rows and for 8
    # Nothing stays behind in the model.
    assert not any("forward" in module.__dict__ for module in ordinary.model.modules())
    assert not any("merged" in module._buffers for module in ordinary.model.modules())


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_features(name, load):
    _, ordinary, compiled = both(load, name)
    for each in (ordinary, compiled):
        each.lend(Features((1, 0, 3), "post"))
        each.prefill(PROMPT)
    expected, found = (each.run(TOKENS, PARENTS).features for each in (ordinary, compiled))
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.usefixtures("traced")
def test_the_trial(load):
    model = TransformersModel(load("llama").double())
    trial = compiled_layers(model)
    assert trial.layers is not None
    assert trial.layers.compilations == 3  # 8 rows, 1 and 2
    assert compiled_layers(model.fresh()) is trial


@pytest.mark.usefixtures("traced")
def test_a_model_that_does_not_compile_says_why(load, caplog):
    made = load("llama").double()
    model = TransformersModel(made)

    class Printing(nn.Module):
        def forward(self, x):
            if float(x.sum()) > 1e9:  # a value from the device, which splits the graph
                print("large")
            return x

    made.model.layers[1].mlp.act_fn = nn.Sequential(Printing(), nn.SiLU())
    with pytest.raises(UnsupportedModel, match="layers of llama models: "):
        require_compiled(model)
    with caplog.at_level(logging.WARNING, "treespec"):
        trial = compiled_layers(model)
    assert trial.layers is None
    assert "the layers in captured passes are not compiled: layers of llama models" in caplog.text
    model.fresh().run(TOKENS, PARENTS)


@pytest.mark.usefixtures("traced")
def test_wrong_code_is_found(load, monkeypatch):
    model = TransformersModel(load("llama").double())
    without_keys = lambda query, *rest: query.transpose(1, 2).contiguous()  # noqa: E731
    monkeypatch.setattr(compiled_layers_file, "tree_attention_operator", without_keys)
    with pytest.raises(UnsupportedModel, match="logits differ from those of an ordinary pass by"):
        require_compiled(model)


@pytest.mark.parametrize(
    ("name", "products"), [("llama", 2), ("qwen2", 2), ("phi", 1), ("phi3", 0)]
)
def test_merged_projections(name, products, load, tmp_path):
    """The same weights under the same names, each in memory once, saved and loaded as ever."""
    made = load(name)
    before = {path: weight.clone() for path, weight in made.state_dict().items()}
    weights = [*made.parameters()]
    storages = sum(w.untyped_storage().nbytes() for w in weights)
    groups = merge_projections(made)
    assert len(groups) == products * made.config.num_hidden_layers
    assert all(old is new for old, new in zip(weights, made.parameters(), strict=True))
    after = made.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[path], weight) for path, weight in before.items())
    kept = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in weights}
    assert sum(kept.values()) <= storages
    again = merge_projections(made)  # nothing moves a second time
    assert [x.weight.data_ptr() for x in again] == [x.weight.data_ptr() for x in groups]
    for group in again:
        assert torch.equal(group.weight, torch.cat([layer.weight for layer in group.layers]))
    made.save_pretrained(tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    assert all(torch.equal(loaded[path], weight) for path, weight in before.items())


def test_what_is_not_merged(load):
    made = load("llama")
    first, second = made.model.layers
    first.self_attn.k_proj = type("Own", (nn.Linear,), {})(32, 16, bias=False)
    first.mlp.up_proj.bias = nn.Parameter(torch.zeros(64))
    second.mlp.gate_proj.forward = second.mlp.gate_proj.forward
    assert [group.layers[0] for group in merge_projections(made)] == [second.self_attn.q_proj]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_by_the_compiler(load, without_shape_checks):
    """One product for each group, and the cache is written in place."""
    from torch._inductor.utils import run_and_get_code

    layers, ordinary, compiled = both(load, "llama")
    for each in (ordinary, compiled):
        each.prefill(PROMPT)
    found, codes = run_and_get_code(ran, compiled)
    torch.testing.assert_close(found, ran(ordinary), **ROUNDED)
    (code,) = [code for code in codes if "treespec.tree_attention" in code]
    assert code.count("extern_kernels.mm(") == 4
    assert "empty_strided_cpu((1, 2, s" not in code  # no second cache
    assert layers.compilations == 1


@pytest.mark.gpu
def test_on_gpu(load):
    """Within the trial's tolerance in bfloat16, and captured as often as before."""
    model = TransformersModel(load("llama", head_dim=64, dtype=torch.bfloat16).cuda())
    assert require_compiled(model).compilations == 3
