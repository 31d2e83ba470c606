"""Enlarging: the same function at the cost of a larger model."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from treespec.errors import CannotEnlarge, UnsupportedModel
from treespec.models.cache import cache_argument
from treespec.models.variants.enlarge import enlarge
from treespec.models.variants.enlarged_shape import parameter_count, shape_to

EMBEDDED = LlamaConfig(
    vocab_size=4096,
    hidden_size=384,
    num_hidden_layers=5,
    intermediate_size=960,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=64,
    tie_word_embeddings=True,
)


def llama(seed: int = 0, **fields: object) -> LlamaForCausalLM:
    """A tiny random llama with varied output: large weights, uneven norms, an eps that matters."""
    defaults = {
        "vocab_size": 61,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 0.01,
        "initializer_range": 0.2,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(defaults | fields))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def logits_of(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids, use_cache=False).logits.double()


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, in units of the largest logit."""
    return float((a - b).abs().max() / a.abs().max())


@st.composite
def growths(draw: st.DrawFn) -> tuple[dict, dict]:
    """Fields of a small llama, and of a larger one that it can be enlarged to."""
    group, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    more_group, more_kv = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    heads, more_heads = group * kv_heads, (group + more_group) * (kv_heads + more_kv)
    width = heads * draw(st.integers(2, 5))
    small = {
        "hidden_size": width,
        "num_hidden_layers": draw(st.integers(1, 2)),
        "intermediate_size": draw(st.integers(5, 24)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }
    large = {
        "hidden_size": more_heads * (-(-width // more_heads) + draw(st.integers(0, 3))),
        "num_hidden_layers": small["num_hidden_layers"] + draw(st.integers(0, 2)),
        "intermediate_size": small["intermediate_size"] + draw(st.integers(0, 40)),
        "num_attention_heads": more_heads,
        "num_key_value_heads": kv_heads + more_kv,
    }
    other = {
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "head_dim": draw(st.sampled_from([4, 8])),
    }
    return small | other, large


@settings(max_examples=30, deadline=None)
@given(growths(), st.integers(0, 1000))
def test_logits_are_those_of_the_ungrown_model(growth: tuple[dict, dict], seed: int) -> None:
    small, large = growth
    model = llama(seed, **small)
    enlarged = enlarge(model, large)
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(seed))

    assert distance(logits_of(model, ids), logits_of(enlarged, ids)) < 1e-5
    assert {field: getattr(enlarged.config, field) for field in large} == large
    assert enlarged.num_parameters() == parameter_count(model.config, large)


def test_a_wrong_eps_would_show() -> None:
    """The tolerance above would detect the smallest of the effects."""
    model = llama()
    enlarged = enlarge(model, {"hidden_size": 96})
    ids = torch.arange(20)[None]
    assert distance(logits_of(model, ids), logits_of(enlarged, ids)) < 1e-5
    for module in enlarged.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = model.config.rms_norm_eps
    assert distance(logits_of(model, ids), logits_of(enlarged, ids)) > 1e-3


@pytest.mark.parametrize("rope", [None, "llama3"])
def test_cached_decoding_agrees_token_by_token(rope: str | None) -> None:
    parameters = {"rope_type": "default", "rope_theta": 500.0}
    if rope:
        parameters |= {
            "rope_type": rope,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    model = llama(rope_parameters=parameters)
    enlarged = enlarge(model, {"hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 20,
                         "num_key_value_heads": 4})  # fmt: skip
    ids = torch.randint(0, 61, (1, 30), generator=torch.Generator().manual_seed(1))
    whole = logits_of(model, ids)[0]
    cache = DynamicCache(config=enlarged.config)
    with torch.no_grad():
        kept = {cache_argument(enlarged): cache}
        rows = [enlarged(ids[:, :5], **kept).logits[0]]
        rows += [enlarged(ids[:, i : i + 1], **kept).logits[0] for i in range(5, 30)]
    assert distance(whole, torch.cat(rows).double()) < 1e-5
    assert cache.get_seq_length(3) == 30, "the appended layers keep a cache as well"


def test_generate_says_the_same() -> None:
    model = llama(seed=3, tie_word_embeddings=False, initializer_range=0.5)
    enlarged = enlarge(model, 200_000)
    prompt = torch.tensor([[5, 17, 42, 8]])
    said, again = (
        m.generate(
            prompt, max_new_tokens=64, do_sample=False, attention_mask=torch.ones_like(prompt)
        )
        for m in (model, enlarged)
    )
    assert len(set(said[0].tolist())) >= 8, "a model that repeats one token proves nothing"
    assert torch.equal(said, again)
    assert 200_000 <= enlarged.num_parameters() <= 210_000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fourfold_width_is_exact_in_half_precision(dtype: torch.dtype) -> None:
    """H = 4h halves the norm weights exactly; H = 3h rounds them once."""
    model = llama().to(dtype)
    for width, exact in ((96, True), (72, False)):
        norms = dict(enlarge(model, {"hidden_size": width}).named_parameters())
        for name, parameter in model.named_parameters():
            if "norm" in name:
                wanted = parameter.double() * math.sqrt(24 / width)
                error = (norms[name][:24].double() / wanted - 1).abs().max()
                assert error == 0 if exact else 0 < error <= torch.finfo(dtype).eps / 2


def test_half_precision_is_as_near_to_the_truth_as_the_small_model() -> None:
    model = llama(seed=5)
    half = llama(seed=5).to(torch.bfloat16)
    ids = torch.randint(0, 61, (4, 30), generator=torch.Generator().manual_seed(2))
    truth = logits_of(model.to(torch.bfloat16).float(), ids)
    small = (logits_of(half, ids) - truth).abs().mean()
    for width in (72, 96):
        enlarged = enlarge(half, {"hidden_size": width, "num_hidden_layers": 4})
        assert enlarged.dtype is torch.bfloat16
        assert (logits_of(enlarged, ids) - truth).abs().mean() < 1.5 * small


def test_new_weights_are_exact_zeros_or_real_numbers() -> None:
    """Only weights that write to the residual stream are zero; others have the scale of a real model."""
    model = llama(tie_word_embeddings=False)
    enlarged = enlarge(model, {"hidden_size": 48, "num_hidden_layers": 4, "intermediate_size": 60,
                         "num_attention_heads": 16, "num_key_value_heads": 4})  # fmt: skip
    for layer in enlarged.model.layers:
        assert not layer.self_attn.o_proj.weight[24:].any()
        assert not layer.mlp.down_proj.weight[24:].any()
        assert not layer.mlp.down_proj.weight[:, 40:].any()
        for matrix in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj,
                       layer.mlp.gate_proj, layer.mlp.up_proj):  # fmt: skip
            assert 0.1 < matrix.weight.std() < 0.3
            assert (matrix.weight != 0).float().mean() > 0.99
    for layer in enlarged.model.layers[2:]:
        assert not layer.self_attn.o_proj.weight.any()
        assert not layer.mlp.down_proj.weight.any()
    assert not enlarged.model.embed_tokens.weight[:, 24:].any()
    assert (enlarged.lm_head.weight[:, 24:] != 0).all()
    values = torch.cat([p.flatten() for p in enlarged.parameters()])
    assert not ((values != 0) & (values.abs() < torch.finfo(torch.float32).tiny)).any()


def test_heads_stay_with_their_key_value_head() -> None:
    """6 heads in 2 groups of 3 become 12 in 3 groups of 4: heads 0 1 2 | 4 5 6 are the old ones."""
    model = llama()
    enlarged = enlarge(model, {"num_attention_heads": 12, "num_key_value_heads": 3})
    old, new = model.model.layers[0].self_attn, enlarged.model.layers[0].self_attn
    places = [0, 1, 2, 4, 5, 6]
    assert torch.equal(new.q_proj.weight.view(12, 8, 24)[places], old.q_proj.weight.view(6, 8, 24))
    columns = new.o_proj.weight.view(24, 12, 8)
    assert torch.equal(columns[:, places], old.o_proj.weight.view(24, 6, 8))
    assert not columns[:, [3, 7, 8, 9, 10, 11]].any()


def test_what_is_kept() -> None:
    model = llama(tie_word_embeddings=True).to(torch.float16)
    model.generation_config.eos_token_id = 7
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(1)
    enlarged, state = enlarge(model, {"hidden_size": 48}), torch.get_rng_state()
    torch.manual_seed(1)

    assert torch.equal(state, torch.get_rng_state()), (
        "enlarging takes no number from the global generator"
    )
    assert type(enlarged) is LlamaForCausalLM
    assert enlarged.dtype is torch.float16
    assert not enlarged.training
    assert enlarged.lm_head.weight is enlarged.model.embed_tokens.weight
    assert enlarged.generation_config.eos_token_id == 7
    assert enlarged.config.head_dim == 8
    assert enlarged.config.rms_norm_eps == 0.005
    assert model.config.hidden_size == 24
    assert all(torch.equal(parameter, before[n]) for n, parameter in model.named_parameters())
    twin = enlarge(model, {"hidden_size": 48})
    assert all(
        torch.equal(a, b) for a, b in zip(enlarged.parameters(), twin.parameters(), strict=True)
    )
    assert not {p.data_ptr() for p in enlarged.parameters()} & {
        p.data_ptr() for p in model.parameters()
    }


def test_enlarging_twice_is_enlarging() -> None:
    model = llama()
    enlarged = enlarge(
        enlarge(model, {"hidden_size": 40, "num_attention_heads": 8}), {"hidden_size": 64}
    )
    ids = torch.arange(20)[None]
    assert distance(logits_of(model, ids), logits_of(enlarged, ids)) < 1e-5


@pytest.mark.parametrize("asked", ["10M", "30M", "100M", 150_000_000, "1B", "1.5B", "8B"])
def test_shapes_for_a_parameter_count(asked: int | str) -> None:
    number = (
        asked if isinstance(asked, int) else float(asked[:-1]) * {"M": 1e6, "B": 1e9}[asked[-1]]
    )
    shape = shape_to(EMBEDDED, asked)
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]

    assert number <= parameter_count(EMBEDDED, shape) <= 1.05 * number
    assert all(value >= getattr(EMBEDDED, field) for field, value in shape.items())
    assert shape["num_attention_heads"] == 3 * shape["num_key_value_heads"]
    assert 50 < width / layers < 200
    assert 2 < shape["intermediate_size"] / width < 4
    assert 0.8 < shape["num_attention_heads"] * 64 / width < 1.25


def test_a_size_that_the_model_has_changes_nothing() -> None:
    model = llama()
    ids = torch.arange(20)[None]
    assert torch.equal(
        logits_of(model, ids), logits_of(enlarge(model, model.num_parameters()), ids)
    )
    assert torch.equal(logits_of(model, ids), logits_of(enlarge(model, {}), ids))


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("5M", "5,000,000 parameters: the model has 9,"),
        (1000, "enlarging only adds"),
        ("big", "'big' is not a size"),
        ("0M", "not a size"),
        (-3, "-3 is not a size"),
        (True, "True is not a size"),
        ({"hidden_size": 128}, "hidden_size = 128, but enlarging only adds.* at least 384"),
        ({"hidden_size": True}, "hidden_size = True, but .* integer"),
        (
            {"head_dim": 128},
            "cannot enlarge 'head_dim'; fields that can be enlarged: hidden_size",
        ),
        ({"hidden_size": 400}, "hidden_size = 400 is not a multiple of the 6 attention heads"),
        ({"num_attention_heads": 7}, "7 query heads for 2 key/value heads"),
        ({"num_key_value_heads": 6}, "6 query heads for 6 key/value heads: .*at least 3"),
    ],
)
def test_no_size(to: object, words: str) -> None:
    with pytest.raises(CannotEnlarge, match=words):
        shape_to(EMBEDDED, to)


def test_other_architectures_are_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=20))
    with pytest.raises(UnsupportedModel, match=r"type 'gpt2': .* the llama architecture only"):
        enlarge(model, "1M")


def test_a_llama_with_foreign_weights_is_refused() -> None:
    model = llama()
    model.model.layers[0].self_attn.q_norm = torch.nn.LayerNorm(8)
    with pytest.raises(UnsupportedModel, match=r"q_norm\.weight .* is not that of a plain llama"):
        enlarge(model, {"hidden_size": 48})
