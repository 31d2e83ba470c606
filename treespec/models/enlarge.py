"""Make a small trained llama as expensive as a larger one, without changing what it computes.

Questions of speed need large models, or a model that costs as much as a large one and says what a small
one says. `enlarge` gives the second: the weights of the small model stand in one corner of larger matrices,
and whatever could disturb them is exactly zero. With width h made H:

    width          the residual stream x becomes [x, 0]: embeddings, o_proj and down_proj write zeros to
                   the new channels. What reads them (q, k, v, gate, up, an untied head) has random
                   columns there, which meet zeros.
    RMSNorm        its mean square runs over H channels now: mean([x, 0]^2) = (h/H) mean(x^2). With
                   eps' = (h/H) eps and w' = sqrt(h/H) w
                       x / sqrt((h/H) mean(x^2) + eps') w' = x / sqrt(mean(x^2) + eps) w.
    heads          with G query heads per key/value head made G', head j of group g, gG + j, becomes
                   gG' + j: it stays with its key/value head. New heads, in old groups and in new ones,
                   attend with random weights, and their columns of o_proj are zero.
    intermediate   new rows of gate and up are random, their columns of down_proj are zero.
    layers         appended at the end; random, but for o_proj and down_proj, which are zero: x + 0 + 0.

Logits agree with the small model's up to the rounding of sums taken in another order. In bfloat16 and
float16 the norm weights are rounded once more, unless H/h is a power of 4: then sqrt(h/H) is a power of 2.

Two things differ from a trained model of that size. Many weights are zeros: dense kernels do the same work
on them, but a GPU draws less power and may clock higher. And the random heads attend diffusely.
"""

import copy
import math

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.errors import CannotEnlarge, UnsupportedModel
from treespec.models.enlarged_shape import EnlargeTo, head_dim_of, parameter_count, shape_to

__all__ = ["EnlargeTo", "enlarge"]

Rows = slice | Tensor
"""Rows or columns: the first ones, or an index."""

NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
ZERO_OUTSIDE = ("embed_tokens", "o_proj", "down_proj")
"""What writes to the residual stream. New weights of all other matrices are random."""


@torch.no_grad()
def enlarge(model: PreTrainedModel, to: int | str | EnlargeTo) -> PreTrainedModel:
    """A model that computes what `model` does at the cost of a larger one.

    Args:
        model: a causal language model of the llama architecture; it is not changed.
        to: number of parameters, embeddings included, as an integer or as text such as "100M" or "1.5B"
            (at least as many and at most 5 % more, in the shape that `enlarged_shape.shape_to` chooses), or
            the config fields of the larger shape.

    Returns:
        A new model in the dtype and on the device of `model`, in evaluation mode, its parameters frozen.
        Its random weights are the same on every call.

    Raises:
        UnsupportedModel: if the model is no plain llama.
        CannotEnlarge: if the asked size is smaller than the model, or no size.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> small = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1,
        ...     intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)).eval()
        >>> enlarged = enlarge(small, {"hidden_size": 64, "num_hidden_layers": 3})
        >>> ids = torch.tensor([[3, 1, 4]])
        >>> torch.allclose(small(ids).logits, enlarged(ids).logits, atol=1e-5)
        True
    """
    _refuse_foreign(model)
    old = model.config
    config = copy.deepcopy(old)
    config.head_dim = head_dim_of(old)
    for field, value in shape_to(old, to).items():
        setattr(config, field, value)
    config.rms_norm_eps = old.rms_norm_eps * old.hidden_size / config.hidden_size
    norm_scale = math.sqrt(old.hidden_size / config.hidden_size)

    _require_memory(parameter_count(config), model)
    enlarged = _unfilled(model, config)
    corners = _corners(old, config, model.device)
    weights = dict(model.named_parameters())
    generator = torch.Generator(model.device).manual_seed(0)
    for name, parameter in enlarged.named_parameters():
        kind = name.split(".")[-2]
        if kind in NORMS:
            parameter.fill_(norm_scale)
        elif kind in ZERO_OUTSIDE:
            parameter.zero_()
        else:
            parameter.normal_(std=config.initializer_range, generator=generator)
        if name in weights:
            small = weights[name] * norm_scale if kind in NORMS else weights[name]  # rounds once
            parameter[corners[kind][: parameter.ndim]] = small
    return enlarged


def _require_memory(parameters: int, model: PreTrainedModel) -> None:
    """Refuse what the machine has no memory for.

    Raises:
        CannotEnlarge: if the weights alone are more than there is.
    """
    import psutil

    on_gpu = model.device.type == "cuda"
    whole = torch.cuda.mem_get_info(model.device)[1] if on_gpu else psutil.virtual_memory().total
    needed = parameters * next(model.parameters()).element_size()
    if needed > whole:
        raise CannotEnlarge(
            f"cannot enlarge to {parameters:,} parameters: they take {needed / 2**30:,.0f} GiB, but "
            f"{model.device} has {whole / 2**30:,.0f}"
        )


def _unfilled(model: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """A model of this config whose parameters hold no values yet: nothing is initialised twice."""
    with torch.device("meta"):
        enlarged = type(model)(config)
    enlarged.to(model.dtype)  # pyrefly: ignore[bad-argument-type]
    enlarged.to_empty(device=model.device)
    enlarged.tie_weights()  # to_empty gave the head its own storage
    enlarged.base_model.rotary_emb = copy.deepcopy(
        model.base_model.rotary_emb
    )  # not a parameter, and kept
    enlarged.generation_config = copy.deepcopy(model.generation_config)
    return enlarged.eval().requires_grad_(False)


def _corners(
    old: PreTrainedConfig, new: PreTrainedConfig, device: torch.device
) -> dict[str, tuple[Rows, Rows]]:
    """Where the rows and columns of each old matrix stand in the new one."""
    heads, head_dim = torch.arange(old.num_attention_heads, device=device), head_dim_of(old)
    group, new_group = (c.num_attention_heads // c.num_key_value_heads for c in (old, new))
    places = heads // group * new_group + heads % group
    query = (places[:, None] * head_dim + torch.arange(head_dim, device=device)).flatten()
    width, intermediate = slice(old.hidden_size), slice(old.intermediate_size)
    key_value, every = slice(old.num_key_value_heads * head_dim), slice(None)
    corners: dict[str, tuple[Rows, Rows]] = {
        "embed_tokens": (every, width),
        "lm_head": (every, width),
        "q_proj": (query, width),
        "k_proj": (key_value, width),
        "v_proj": (key_value, width),
        "o_proj": (width, query),
        "gate_proj": (intermediate, width),
        "up_proj": (intermediate, width),
        "down_proj": (width, intermediate),
    }
    corners.update(dict.fromkeys(NORMS, (width, every)))
    return corners


def _refuse_foreign(model: PreTrainedModel) -> None:
    kind = model.config.model_type
    if kind != "llama":
        raise UnsupportedModel(
            f"cannot enlarge a model of type {kind!r}: only the llama architecture has a known "
            "function-preserving enlargement here; leave enlarge=None, or choose a llama model"
        )
    known = {*_corners(model.config, model.config, torch.device("cpu"))}
    for name, parameter in model.named_parameters():
        if name.split(".")[-2] not in known or not parameter.is_floating_point():
            raise UnsupportedModel(
                f"cannot enlarge this llama: its parameter {name} ({parameter.dtype}) is not a plain "
                "llama's; load it without quantisation or adapters"
            )
