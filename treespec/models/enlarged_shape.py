"""The larger shape that a llama is given: counting parameters, choosing proportions, refusing nonsense."""

import math
import re
from collections.abc import Iterator, Mapping

from transformers import PreTrainedConfig

from treespec.errors import CannotEnlarge
from treespec.reading import brief

__all__ = ["EnlargeTo", "head_dim_of", "parameter_count", "shape_to"]

MOST_PARAMETERS = 10**12
TOLERANCE = 1.05
"""A model asked to have N parameters gets N .. 1.05 N."""


MOST_WIDTH_PER_LAYER, LEAST_WIDTH_PER_LAYER = 800, 12
"""No shape has a width / layers beyond these, unless the small model has."""

FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)
"""The fields of a llama config that can be made larger."""

EnlargeTo = Mapping[str, int]
"""Some of `FIELDS` with their new values; what is left out stays as it is."""


def shape_to(config: PreTrainedConfig, to: int | str | EnlargeTo) -> dict[str, int]:
    """All fields of the shape that a llama of this config is enlarged to.

    A number of parameters, N, leaves a choice. Of all shapes of N to 1.05 N parameters in which nothing
    shrinks, it falls on the one nearest, in the sum of absolute log ratios, to the proportions of trained
    llamas: width / layers = 100, intermediate / width = 3, heads x head_dim = width. head_dim stays (rotary
    positions depend on it), and so does the number of query heads per key/value head. Widths and
    intermediate widths are multiples of 64 (of 8 below 20M parameters, of 128 from 1B). A width of a
    power of 4 times the old one, at which bfloat16 norms stay exact, has a head start of 0.1.

    Args:
        config: of the model to enlarge.
        to: parameters as an integer or as text ("30M", "1.5B"), embeddings included, or the fields.

    Raises:
        CannotEnlarge: if `to` is no size, or anything in it is smaller than in the model.

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
        raise CannotEnlarge(f"enlarge={brief(to, 60)}: at most {MOST_PARAMETERS:,} parameters")
    if now > parameters * TOLERANCE:
        raise CannotEnlarge(
            f"cannot enlarge to {parameters:,} parameters: the model has {now:,}, and enlarging only adds"
        )
    if now >= parameters:
        return _sizes(config)
    shapes = _shapes(config, parameters)
    best = min(shapes, key=lambda shape: _strangeness(config, shape), default=None)
    if best is None:
        raise CannotEnlarge(
            f"no shape of {parameters:,} to {int(parameters * TOLERANCE):,} parameters holds this model "
            f"of {now:,}; give the fields of the config instead: {', '.join(FIELDS)}"
        )
    return best


def parameter_count(config: PreTrainedConfig, shape: EnlargeTo | None = None) -> int:
    """Number of parameters (tied embeddings once) of a llama of this config, or of it in another shape."""
    sizes = _sizes(config) | dict(shape or {})
    width, layers, intermediate, heads, kv_heads = (sizes[field] for field in FIELDS)
    q, kv = heads * head_dim_of(config), kv_heads * head_dim_of(config)
    layer = 2 * width * (q + kv) + 3 * width * intermediate + 2 * width
    layer += (q + 2 * kv + width) * bool(config.attention_bias)
    layer += (2 * intermediate + width) * bool(config.mlp_bias)
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    return embeddings + layers * layer + width


def head_dim_of(config: PreTrainedConfig) -> int:
    """Channels of one attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _sizes(config: PreTrainedConfig) -> dict[str, int]:
    return {field: getattr(config, field) for field in FIELDS}


def _number(to: int | str) -> int:
    """The number of parameters that the user asked for."""
    if isinstance(to, int) and not isinstance(to, bool) and to > 0:
        return to
    match = (
        re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([KMB])", to.strip().upper())
        if isinstance(to, str)
        else None
    )
    if match is None or not float(match[1]):
        raise CannotEnlarge(
            f"enlarge={brief(to)} is no size: give a number of parameters such as 100_000_000, '100M' or "
            f"'1.5B', or a dict of config fields ({', '.join(FIELDS)})"
        )
    return round(float(match[1]) * {"K": 10**3, "M": 10**6, "B": 10**9}[match[2]])


def _checked(config: PreTrainedConfig, to: EnlargeTo) -> dict[str, int]:
    """The shape with these fields, if everything fits into it and heads stay in whole groups."""
    now = _sizes(config)
    for field, value in to.items():
        if field not in now:
            raise CannotEnlarge(
                f"cannot enlarge {brief(field, 60)}; fields that can be made larger: {', '.join(FIELDS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < now[field]:
            raise CannotEnlarge(
                f"{field} = {brief(value)}, but enlarging only adds: it must be an integer of at least "
                f"{now[field]}, the model's own"
            )
    shape = now | dict(to)
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    group = now["num_attention_heads"] // now["num_key_value_heads"]
    if heads % kv_heads or heads // kv_heads < group:
        raise CannotEnlarge(
            f"{heads} query heads for {kv_heads} key/value heads: heads keep their groups, so "
            f"num_attention_heads must be num_key_value_heads times an integer of at least {group}"
        )
    if shape["hidden_size"] % heads:
        raise CannotEnlarge(
            f"hidden_size = {shape['hidden_size']} is no multiple of the {heads} attention heads, which "
            "transformers asks for: choose another hidden_size or num_attention_heads"
        )
    return shape


def _shapes(config: PreTrainedConfig, parameters: int) -> Iterator[dict[str, int]]:
    """Shapes of `parameters` to 1.05 `parameters` that hold the old one, of every width and depth."""
    unit = 8 if parameters < 20_000_000 else 64 if parameters < 1_000_000_000 else 128
    old_width, least = config.hidden_size, config.intermediate_size
    group = config.num_attention_heads // config.num_key_value_heads
    widest = round(
        (MOST_WIDTH_PER_LAYER / 2 * parameters * TOLERANCE) ** (1 / 3)
    )  # q_proj and o_proj alone fill it
    for width in (old_width, *range((old_width // unit + 1) * unit, widest + 1, unit)):
        kv_heads = _key_value_heads(config, width)
        if kv_heads is None:
            continue
        shape = {
            "hidden_size": width,
            "num_attention_heads": group * kv_heads,
            "num_key_value_heads": kv_heads,
        }
        rest, hollow, slim = (
            parameter_count(config, shape | {"num_hidden_layers": n, "intermediate_size": i})
            for n, i in ((0, 0), (1, 0), (1, 1))
        )
        layer, channel = hollow - rest, slim - hollow
        shallowest = max(config.num_hidden_layers, width // MOST_WIDTH_PER_LAYER)
        for layers in range(shallowest, max(shallowest, width // LEAST_WIDTH_PER_LAYER) + 1):
            units = -(-(parameters - rest - layers * layer) // (layers * channel * unit))
            intermediate = max(least, units * unit)
            if rest + layers * (layer + intermediate * channel) <= parameters * TOLERANCE:
                yield shape | {"num_hidden_layers": layers, "intermediate_size": intermediate}
            elif intermediate == least:
                break


def _key_value_heads(config: PreTrainedConfig, width: int) -> int | None:
    """How many make heads x head_dim nearest to the width, which heads divide (transformers asks so)."""
    group = config.num_attention_heads // config.num_key_value_heads
    fitting = [
        kv_heads
        for kv_heads in range(config.num_key_value_heads, width // group + 1)
        if width % (group * kv_heads) == 0
    ]
    wanted = width / (group * head_dim_of(config))
    return min(fitting, key=lambda kv_heads: abs(math.log(kv_heads / wanted)), default=None)


def _strangeness(config: PreTrainedConfig, shape: EnlargeTo) -> float:
    width, layers, intermediate, heads, _ = (shape[field] for field in FIELDS)
    ratios = (width / layers / 100, intermediate / width / 3, heads * head_dim_of(config) / width)
    fourfold = math.log(width / config.hidden_size, 4)
    inexact = abs(fourfold - round(fourfold)) > 1e-9
    return sum(abs(math.log(ratio)) for ratio in ratios) + 0.1 * inexact
