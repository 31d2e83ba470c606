"""Make a small trained llama as expensive as a larger one, without changing what it computes.

Measuring speed needs large models, or a model that costs as much as a large model and computes what a small
model computes. `enlarge` makes the latter: the weights of the small model occupy one corner of larger
matrices, and everything that could change its results is exactly zero. With width h enlarged to H:

    width          the residual stream x becomes [x, 0]: embeddings, o_proj and down_proj write zeros to
                   the new channels. The matrices that read them (q, k, v, gate, up, an untied head) have
                   random columns there, which are multiplied by zeros.
    RMSNorm        the mean square is now over H channels: mean([x, 0]^2) = (h/H) mean(x^2). With
                   eps' = (h/H) eps and w' = sqrt(h/H) w
                       x / sqrt((h/H) mean(x^2) + eps') w' = x / sqrt(mean(x^2) + eps) w.
    heads          with G query heads per key/value head enlarged to G', head j of group g, gG + j, becomes
                   gG' + j, so it keeps its key/value head. New heads, in old groups and in new ones,
                   attend with random weights, and their columns of o_proj are zero.
    intermediate   new rows of gate and up are random, their columns of down_proj are zero.
    layers         appended at the end; random except for o_proj and down_proj, which are zero: x + 0 + 0.

Logits agree with the small model's up to the rounding of sums taken in another order. In bfloat16 and
float16 the norm weights are rounded once more, unless H/h is a power of 4: then sqrt(h/H) is a power of 2.

The result differs from a trained model of that size in two ways. Many weights are zero: dense kernels do
the same work on them, but a GPU draws less power and may clock higher. And the random heads attend
diffusely.
"""

import copy
import math

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.errors import CannotEnlarge, UnsupportedModel
from treespec.models.quantised import stored
from treespec.models.variants.enlarged_shape import (
    EnlargeTo,
    head_dim_of,
    parameter_count,
    shape_to,
)

Rows = slice | Tensor
"""Indices of rows or columns: a leading slice, or a tensor."""

NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
ZERO_OUTSIDE = ("embed_tokens", "o_proj", "down_proj")
"""Matrices that write to the residual stream. New weights of all other matrices are random."""


@torch.no_grad()
def enlarge(model: PreTrainedModel, to: int | str | EnlargeTo) -> PreTrainedModel:
    """Make a model that computes what `model` computes at the cost of a larger one.

    Args:
        model: a causal language model of the llama architecture; it is not changed.
        to: number of parameters, embeddings included, as an integer or as text such as "100M" or "1.5B"
            (the result has at least as many and at most 5 % more, in the shape that
            `enlarged_shape.shape_to` chooses), or the config fields of the larger shape.

    Returns:
        A new model in the dtype and on the device of `model`, in evaluation mode, its parameters frozen.
        Its random weights are the same on every call.

    Raises:
        UnsupportedModel: if the model is not a plain llama.
        CannotEnlarge: if `to` is not a size, or is smaller than the model.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> small = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1,
        ...     intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)).eval()
        >>> enlarged = enlarge(small, {"hidden_size": 64, "num_hidden_layers": 3})
        >>> ids = torch.tensor([[3, 1, 4]])
        >>> torch.allclose(small(ids).logits, enlarged(ids).logits, atol=1e-5)
        True
    """
    _require_plain_llama(model)
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
    """Refuse sizes that exceed the memory of the device."""
    import psutil

    on_gpu = model.device.type == "cuda"
    total = torch.cuda.mem_get_info(model.device)[1] if on_gpu else psutil.virtual_memory().total
    needed = parameters * next(model.parameters()).element_size()
    if needed > total:
        raise CannotEnlarge(
            f"enlarge: cannot enlarge to {parameters:,} parameters: they take {needed / 2**30:,.0f} GiB, "
            f"but {model.device} has {total / 2**30:,.0f} GiB: {(needed - total) / 2**30:,.1f} GiB are "
            "missing"
        )


def _unfilled(model: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """A model of this config with uninitialised parameters, so that none is initialised twice."""
    with torch.device("meta"):
        enlarged = type(model)(config)
    enlarged.to(model.dtype)  # pyrefly: ignore[bad-argument-type]
    enlarged.to_empty(device=model.device)
    enlarged.tie_weights()  # to_empty gave the head its own storage
    # Not a parameter, and unchanged by enlarging.
    enlarged.base_model.rotary_emb = copy.deepcopy(model.base_model.rotary_emb)
    enlarged.generation_config = copy.deepcopy(model.generation_config)
    return enlarged.eval().requires_grad_(False)


def _corners(
    old: PreTrainedConfig, new: PreTrainedConfig, device: torch.device
) -> dict[str, tuple[Rows, Rows]]:
    """The rows and columns of each new matrix that hold the old one."""
    heads, head_dim = torch.arange(old.num_attention_heads, device=device), head_dim_of(old)
    group, new_group = (c.num_attention_heads // c.num_key_value_heads for c in (old, new))
    new_heads = heads // group * new_group + heads % group
    query = (new_heads[:, None] * head_dim + torch.arange(head_dim, device=device)).flatten()
    width, intermediate = slice(old.hidden_size), slice(old.intermediate_size)
    key_value, all_rows = slice(old.num_key_value_heads * head_dim), slice(None)
    corners: dict[str, tuple[Rows, Rows]] = {
        "embed_tokens": (all_rows, width),
        "lm_head": (all_rows, width),
        "q_proj": (query, width),
        "k_proj": (key_value, width),
        "v_proj": (key_value, width),
        "o_proj": (width, query),
        "gate_proj": (intermediate, width),
        "up_proj": (intermediate, width),
        "down_proj": (width, intermediate),
    }
    corners.update(dict.fromkeys(NORMS, (width, all_rows)))
    return corners


def _require_plain_llama(model: PreTrainedModel) -> None:
    model_type = model.config.model_type
    if model_type != "llama":
        raise UnsupportedModel(
            f"enlarge: cannot enlarge a model of type {model_type!r}: a function-preserving enlargement is "
            "implemented for the llama architecture only; leave enlarge=None, or choose a llama model"
        )
    known = {*_corners(model.config, model.config, torch.device("cpu"))}
    for name, parameter in model.named_parameters():
        quantised = len(stored(parameter)) > 1 or not parameter.is_floating_point()
        if name.split(".")[-2] not in known or quantised:
            raise UnsupportedModel(
                f"enlarge: cannot enlarge this llama: its parameter {name} ({parameter.dtype}) is not that "
                "of a plain llama; load it without quantisation or adapters"
            )
