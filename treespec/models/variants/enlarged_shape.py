"""Choose the larger shape of a llama: count parameters, choose proportions, refuse invalid sizes."""

import math
import re
from collections.abc import Iterator, Mapping

from transformers import PreTrainedConfig

from treespec.errors import CannotEnlarge
from treespec.files import brief

MOST_PARAMETERS = 10**12
TOLERANCE = 1.05
"""A model enlarged to N parameters gets N .. 1.05 N."""


MOST_WIDTH_PER_LAYER, LEAST_WIDTH_PER_LAYER = 800, 12
"""Bounds on width / layers of the chosen shapes, unless the small model is beyond them."""

FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)
"""The fields of a llama config that can be enlarged."""

EnlargeTo = Mapping[str, int]
"""New values for some of `FIELDS`; the others do not change."""


def shape_to(config: PreTrainedConfig, to: int | str | EnlargeTo) -> dict[str, int]:
    """All fields of the shape to which a llama with this config is enlarged.

    A number of parameters, N, does not determine the shape. Of all shapes with N to 1.05 N parameters in
    which nothing shrinks, the choice is the nearest, in the sum of absolute log ratios, to the proportions
    of trained llamas: width / layers = 100, intermediate / width = 3, heads x head_dim = width. head_dim
    does not change (rotary positions depend on it), nor does the number of query heads per key/value head.
    Widths and intermediate widths are multiples of 64 (of 8 below 20M parameters, of 128 from 1B). Widths
    that are the old one times a power of 4, which keep bfloat16 norms exact, get a bonus of 0.1.

    `to`: number of parameters, embeddings included, as an integer or as text ("30M", "1.5B"), or the
    fields.

    Example:
        >>> from transformers import LlamaConfig
        >>> small = LlamaConfig(vocab_size=4096, hidden_size=384, num_hidden_layers=5, head_dim=64,
        ...     intermediate_size=960, num_attention_heads=6, num_key_value_heads=2)
        >>> shape_to(small, {"num_hidden_layers": 12})["num_hidden_layers"]
        12
        >>> parameter_count(small, shape_to(small, "100M")) >= 100_000_000
        True
    """
    if isinstance(to, Mapping):
        return _checked(config, to)
    parameters, now = _number(to), parameter_count(config)
    if parameters > MOST_PARAMETERS:
        raise CannotEnlarge(
            f"enlarge={brief(to, 60)}: at most {MOST_PARAMETERS:,} parameters are possible"
        )
    if now > parameters * TOLERANCE:
        raise CannotEnlarge(
            f"cannot enlarge to {parameters:,} parameters: the model has {now:,}, and enlarging only adds"
        )
    if now >= parameters:
        return _sizes(config)
    shapes = _shapes(config, parameters)
    best = min(shapes, key=lambda shape: _distance(config, shape), default=None)
    if best is None:
        raise CannotEnlarge(
            f"no shape of {parameters:,} to {int(parameters * TOLERANCE):,} parameters contains this model "
            f"of {now:,}; give the fields of the config instead: {', '.join(FIELDS)}"
        )
    return best


def parameter_count(config: PreTrainedConfig, shape: EnlargeTo | None = None) -> int:
    """Number of parameters of a llama with this config, or with other sizes; tied embeddings count once."""
    sizes = _sizes(config) | dict(shape or {})
    width, layers, intermediate, heads, kv_heads = (sizes[field] for field in FIELDS)
    q, kv = heads * head_dim_of(config), kv_heads * head_dim_of(config)
    layer = 2 * width * (q + kv) + 3 * width * intermediate + 2 * width
    layer += (q + 2 * kv + width) * bool(config.attention_bias)
    layer += (2 * intermediate + width) * bool(config.mlp_bias)
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * layer + width


def head_dim_of(config: PreTrainedConfig) -> int:
    """Number of channels of one attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _sizes(config: PreTrainedConfig) -> dict[str, int]:
    return {field: getattr(config, field) for field in FIELDS}


def _number(to: int | str) -> int:
    if isinstance(to, int) and not isinstance(to, bool) and to > 0:
        return to
    match = (
        re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([KMB])", to.strip().upper())
        if isinstance(to, str)
        else None
    )
    if match is None or not float(match[1]):
        raise CannotEnlarge(
            f"enlarge={brief(to)} is not a size: give a number of parameters such as 100_000_000, '100M' "
            f"or '1.5B', or a dict of config fields ({', '.join(FIELDS)})"
        )
    return round(float(match[1]) * {"K": 10**3, "M": 10**6, "B": 10**9}[match[2]])


def _checked(config: PreTrainedConfig, to: EnlargeTo) -> dict[str, int]:
    """The shape with these fields, if it contains the model and heads remain in whole groups."""
    old = _sizes(config)
    for field, value in to.items():
        if field not in old:
            raise CannotEnlarge(
                f"cannot enlarge {brief(field, 60)}; fields that can be enlarged: {', '.join(FIELDS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < old[field]:
            raise CannotEnlarge(
                f"{field} = {brief(value)}, but enlarging only adds: it must be an integer of at least "
                f"{old[field]}, the model's own value"
            )
    shape = old | dict(to)
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    group = old["num_attention_heads"] // old["num_key_value_heads"]
    if heads % kv_heads or heads // kv_heads < group:
        raise CannotEnlarge(
            f"{heads} query heads for {kv_heads} key/value heads: heads keep their groups, so "
            f"num_attention_heads must be num_key_value_heads times an integer of at least {group}"
        )
    if shape["hidden_size"] % heads:
        raise CannotEnlarge(
            f"hidden_size = {shape['hidden_size']} is not a multiple of the {heads} attention heads, which "
            "transformers requires: choose another hidden_size or num_attention_heads"
        )
    return shape


def _shapes(config: PreTrainedConfig, parameters: int) -> Iterator[dict[str, int]]:
    """All shapes of `parameters` to 1.05 `parameters` that contain the old one, by width and depth."""
    unit = 8 if parameters < 20_000_000 else 64 if parameters < 1_000_000_000 else 128
    old_width, least = config.hidden_size, config.intermediate_size
    group = config.num_attention_heads // config.num_key_value_heads
    # At this width, q_proj and o_proj alone have all the parameters.
    widest = round((MOST_WIDTH_PER_LAYER / 2 * parameters * TOLERANCE) ** (1 / 3))
    for width in (old_width, *range((old_width // unit + 1) * unit, widest + 1, unit)):
        kv_heads = _key_value_heads(config, width)
        if kv_heads is None:
            continue
        shape = {
            "hidden_size": width,
            "num_attention_heads": group * kv_heads,
            "num_key_value_heads": kv_heads,
        }
        base, one_layer, one_channel = (
            parameter_count(config, shape | {"num_hidden_layers": n, "intermediate_size": i})
            for n, i in ((0, 0), (1, 0), (1, 1))
        )
        layer, channel = one_layer - base, one_channel - one_layer
        shallowest = max(config.num_hidden_layers, width // MOST_WIDTH_PER_LAYER)
        for layers in range(shallowest, max(shallowest, width // LEAST_WIDTH_PER_LAYER) + 1):
            units = -(-(parameters - base - layers * layer) // (layers * channel * unit))
            intermediate = max(least, units * unit)
            if base + layers * (layer + intermediate * channel) <= parameters * TOLERANCE:
                yield shape | {"num_hidden_layers": layers, "intermediate_size": intermediate}
            elif intermediate == least:
                break


def _key_value_heads(config: PreTrainedConfig, width: int) -> int | None:
    """The number that makes heads x head_dim nearest to the width; heads must divide the width."""
    group = config.num_attention_heads // config.num_key_value_heads
    fitting = [
        kv_heads
        for kv_heads in range(config.num_key_value_heads, width // group + 1)
        if width % (group * kv_heads) == 0
    ]
    wanted = width / (group * head_dim_of(config))
    return min(fitting, key=lambda kv_heads: abs(math.log(kv_heads / wanted)), default=None)


def _distance(config: PreTrainedConfig, shape: EnlargeTo) -> float:
    """How far a shape is from the proportions of trained llamas; see `shape_to`."""
    width, layers, intermediate, heads, _ = (shape[field] for field in FIELDS)
    ratios = (width / layers / 100, intermediate / width / 3, heads * head_dim_of(config) / width)
    fourfold = math.log(width / config.hidden_size, 4)
    inexact = abs(fourfold - round(fourfold)) > 1e-9
    return sum(abs(math.log(ratio)) for ratio in ratios) + 0.1 * inexact
