"""Models that skip sublayers equal the plain model with these parts silenced, and share all its weights."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft import EarlyExit, LayerSkip
from treespec.errors import InvalidArgument, UnsupportedModel
from treespec.models.decoder_layers import ATTENTION
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.shortened import MLP, _list_of_layers
from treespec.models.variants.sublayers import (
    Sublayer,
    layers_from,
    require_sublayers,
    sublayers_of,
)
from treespec.target import ModelTarget
from treespec.verify import greedy

ALL = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt",
    "olmo2", "starcoder2", "cohere", "mixtral", "gpt_oss", "stablelm", "falcon", "gptj",
)  # fmt: skip
WITHOUT_MLP = ("opt",)
"""Models whose layers have no module for their feed-forward part."""

SHAPE = TreeShape.expansion([3, 2])
DEEPER = {"gpt2": "n_layer", "gptj": "n_layer"}


def layers_of(name):
    """Settings that give a model three layers."""
    kinds = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    more = kinds if name.startswith("gemma") else {}
    return {DEEPER.get(name, "num_hidden_layers"): 3} | more


def silenced(plain, skip, texts):
    """The last logits of each text when hooks replace the outputs of these sublayers by zeros."""
    (_, layers), hooks = _list_of_layers(plain), []

    def nothing(module, given, output):
        return (
            (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else 0 * output
        )

    for layer, part in skip:
        module = layers[layer]
        names = ATTENTION if part == "attention" else (MLP,)
        (name,) = (name for name in names if hasattr(module, name))
        hooks.append(getattr(module, name).register_forward_hook(nothing))
    try:
        with torch.inference_mode():
            return torch.stack([plain(text[None], use_cache=False).logits[0, -1] for text in texts])
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("name", ALL)
def test_rows_are_those_of_the_model_with_parts_silenced(name, load):
    model = TransformersModel(load(name, **layers_of(name)))
    whole = [Sublayer(0, "attention"), Sublayer(0, "mlp")]
    sets = [whole] if name in WITHOUT_MLP else [
        whole, layers_from(1, 3), ["attention.1"], ["mlp.2", "attention.0"],
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    text, tokens = (torch.randint(96, (n,), generator=generator) for n in (17, SHAPE.size))
    paths = [torch.cat([text, tokens[list(SHAPE.path(node))]]) for node in range(SHAPE.size)]
    for names in sets:
        skip = require_sublayers("skip", names, model.layer_count)
        short = model.without(names)
        assert model.without([*names][::-1]) is short
        short.prefill(text)
        found = short.run(tokens, SHAPE.parents).logits
        if name not in WITHOUT_MLP:
            with model.as_transformers() as plain:
                expected = silenced(plain, skip, paths)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        short.keep([0, 2, 7])
        again = model.without(names).fresh()
        again.prefill(paths[7])
        both = (m.run(tokens[:2], (-1, 0)).logits for m in (short, again))
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4)


def test_early_exit_is_the_norm_and_the_head_on_a_hidden_state(load):
    """Compared with hidden states from transformers, so that the reference is independent."""
    for name in ("llama", "opt", "gpt2"):
        model = TransformersModel(load(name, **layers_of(name)))
        text = torch.arange(5, 14)
        with model.as_transformers() as plain, torch.inference_mode():
            states = plain(text[None], use_cache=False, output_hidden_states=True).hidden_states
            norm = {"llama": "norm", "opt": "decoder.final_layer_norm", "gpt2": "ln_f"}[name]
            normed = plain.base_model.get_submodule(norm)(states[1])
            expected = plain.get_output_embeddings()(normed)[0, -1]
        short = model.without(layers_from(1, 3))
        short.prefill(text[:-1])
        torch.testing.assert_close(
            short.run(text[-1:], (-1,)).logits[0], expected, rtol=1e-4, atol=1e-4
        )


def test_nothing_is_copied_and_the_target_is_as_it_was(load):
    model = TransformersModel(load("llama", **layers_of("llama")))
    own = {id(p) for p in model.model.parameters()}
    before = {name: id(module) for name, module in model.model.named_modules()}
    model.prefill(torch.arange(9))
    rows = model.run(torch.arange(4), (-1, 0, 1, 2)).logits
    short = model.without(["attention.0", "mlp.1", *map(str, layers_from(2, 3))])
    assert {id(p) for p in short.model.parameters()} < own
    assert {name: id(module) for name, module in model.model.named_modules()} == before
    assert model.model.config.num_hidden_layers == 3
    assert [shape is not None for shape in short.finding.layout] == [False, True, False]
    short.prefill(torch.arange(3))
    model.prefill(torch.arange(9))
    assert torch.equal(model.run(torch.arange(4), (-1, 0, 1, 2)).logits, rows)
    with model.as_transformers(), pytest.raises(UnsupportedModel, match="in use as a plain model"):
        short.run(torch.arange(1), (-1,))


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_greedy_text_is_that_of_generate(name, load, prompt, generated, without_shape_checks):
    target = TransformersModel(load(name, **layers_of(name)))
    expected, cold = generated(target, 40), Sampling(temperature=0.0)
    assert len(set(expected)) >= 8
    for shape in (TreeShape.chain(3), TreeShape.expansion([3, 2])):
        for drafter, all_kept in (
            (EarlyExit(target, 2, shape, Law.DETERMINISTIC, cold), False),
            (EarlyExit(target, 3, shape, Law.DETERMINISTIC, cold), True),
            (LayerSkip(target, ["mlp.1"], shape, Law.DETERMINISTIC, cold), False),
            (LayerSkip(target, [], shape, Law.DETERMINISTIC, cold), True),
        ):
            steps = list(
                decode(
                    ModelTarget(target), drafter, greedy, prompt,
                    sampling=cold, coins=TorchCoins(0), max_new_tokens=40,
                )
            )  # fmt: skip
            assert [token for step in steps for token in step.tokens] == expected
            accepted = [step.verdict.accepted for step in steps[:-1]]
            assert all(n == shape.depth for n in accepted) == all_kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_layers_accept_everything(temperature, load, prompt):
    """Under every law: each token is drawn from the target's own row."""
    target, sampling = TransformersModel(load("llama")), Sampling(temperature)
    from treespec.verify import chain

    rule, law = (greedy, Law.DETERMINISTIC) if not temperature else (chain, Law.IID)
    drafter = EarlyExit(target, 2, TreeShape.chain(4), law, sampling)
    steps = decode(
        ModelTarget(target), drafter, rule, prompt, sampling=sampling, coins=TorchCoins(1),
        max_new_tokens=50,
    )  # fmt: skip
    assert [step.verdict.emitted for step in steps] == [5] * 10


def test_rows_up_to_the_first_part_that_is_left_out_are_the_targets(load):
    """Also for nodes of a tree; a feed-forward part comes after the rows of its own layer."""
    model = TransformersModel(load("llama", num_hidden_layers=3))
    text, tokens = torch.arange(5, 16), torch.arange(20, 20 + SHAPE.size)

    def rows(one):
        one.prefill(text)
        one.run(tokens, SHAPE.parents)
        cache = one._runner.cache
        return [
            torch.stack((layer.keys, layer.values))[..., : len(text) + SHAPE.size, :]
            for layer, shape in zip(cache.layers, cache.layout, strict=True)
            if shape is not None
        ]

    whole = rows(model)
    for names, layers, equal in (
        ([*map(str, layers_from(2, 3))], (0, 1), 2),
        (["mlp.1"], (0, 1, 2), 2),
        (["attention.1"], (0, 2), 1),
        ([], (0, 1, 2), 3),
    ):
        found = rows(model.without(names))
        assert len(found) == len(layers), names
        for i, (layer, own) in enumerate(zip(layers, found, strict=True)):
            far = float((whole[layer] - own).abs().max())
            assert far < 1e-5 if i < equal else far > 1e-2, (names, layer, far)


REFUSED = {
    "layers = 0, but must be an integer in 1..2": lambda m, *a: EarlyExit(m, 0, *a),
    "layers = 3, but must be an integer in 1..2": lambda m, *a: EarlyExit(m, 3, *a),
    "skip names mlp.2, but the model has 2 layers: 0 to 1": lambda m, *a: LayerSkip(
        m, ["mlp.2"], *a
    ),
    "'mlp' is not a sublayer: give a name like attention.3": lambda m, *a: LayerSkip(
        m, ["mlp"], *a
    ),
    "'mlp.-1' is not a sublayer": lambda m, *a: LayerSkip(m, ["mlp.-1"], *a),
    "must be a sequence of sublayers": lambda m, *a: LayerSkip(m, "mlp.1", *a),
    r"skip names mlp\.1 twice": lambda m, *a: LayerSkip(m, ["mlp.1", "mlp.0", "mlp.01"], *a),
    "skip names every sublayer": lambda m, *a: LayerSkip(m, sublayers_of(2), *a),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_not_there_is_refused(said, load, without_shape_checks):
    model = TransformersModel(load("llama"))
    with pytest.raises(InvalidArgument, match=said):
        REFUSED[said](model, TreeShape.chain(2), Law.DETERMINISTIC, Sampling())


def test_architectures_that_cannot_are_refused_by_name(load):
    opt = TransformersModel(load("opt"))
    with pytest.raises(UnsupportedModel, match=r"opt models cannot skip mlp\.1 alone"):
        opt.without(["mlp.1"])
    llama = TransformersModel(load("llama"))
    llama.model.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(UnsupportedModel, match="llama models cannot skip layers"):
        llama.without(["mlp.1", "attention.1"])
    wrapped = TransformersModel(load("llama"))
    wrapped.model.model.forward = wrapped.model.model.forward
    with pytest.raises(UnsupportedModel, match="wrapped"):
        wrapped.without(["mlp.1"])
    other = TransformersModel(load("llama"))
    other.model.model.layers = torch.nn.ModuleList(other.model.model.layers[:1])
    with pytest.raises(UnsupportedModel, match=r"llama models.*not a single list"):
        other.without(["mlp.1"])
    shared = TransformersModel(load("llama"))
    shared.model.config.num_kv_shared_layers = 1
    with pytest.raises(UnsupportedModel, match="read the rows of others"):
        shared.without(["mlp.1"])
