"""The few layers of which all heads are made, without a cache, a module or a batch."""

from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def named(tensors: Tensors, dtype: torch.dtype = torch.float64) -> Tensors:
    """The tensors in one precision (integers as they are), without the prefix `model.`."""
    result = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        result[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return result


def inner(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the layers: speculators nests it."""
    return config.get("transformer_layer_config", config)


def theta(config: dict[str, Any]) -> float:
    """The base of the rotary angles: of `rope_parameters`, or on its own; else 10000."""
    parameters = config.get("rope_parameters") or {}
    return parameters.get("rope_theta", config.get("rope_theta", 10000.0))


def turning(config: dict[str, Any]) -> float:
    """The share of the dimensions of a head that turn: as said, else what the family takes for granted."""
    parameters = config.get("rope_parameters") or {}
    usual = {"glm4_moe": 0.5, "qwen3_next": 0.25, "qwen3_5_text": 0.25}.get(
        config.get("model_type", ""), 1.0
    )
    return parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", usual))


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square, times the gain."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotated(x: Tensor, positions: Tensor, base: float, share: float = 1.0) -> Tensor:
    """Rotary positions on [T, heads, d]: dimension i turns with dimension i + n/2 of the first n.

    Args:
        x: queries or keys.
        positions: [T].
        base: of the angles.
        share: of the dimensions that turn; the others stay.
    """
    n = int(x.shape[-1] * share)
    angles = positions[:, None].to(x.dtype) * base ** -(torch.arange(0, n, 2, dtype=x.dtype) / n)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second, still = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, still), -1)


def causal(length: int) -> Tensor:
    """Who may see whom in a text: itself and what stands before."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def spread(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Softmax attention of [T, heads, d] over [S, kv heads, d], with seen [T, S]; [T, heads * d]."""
    groups = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(groups, 1) for x in (keys, values))
    scores = torch.einsum("thd,shd->hts", queries, keys) * scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, values).flatten(1)


def projected(x: Tensor, tensors: Tensors, name: str) -> Tensor:
    """A linear layer; with its bias if the file has one."""
    return torch.nn.functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def attention(
    x: Tensor,
    tensors: Tensors,
    name: str,
    config: dict[str, Any],
    positions: Tensor,
    seen: Tensor,
    before: Tensor | None = None,
) -> Tensor:
    """Grouped attention with rotary positions, as in llama, qwen2 (biases), qwen3 (norms of q and k), glm4
    (half of each head turns) and qwen3-next (the projection of q also gives gates: per head [q, gate]).

    Args:
        x: [T, width], normed.
        tensors: of the file.
        name: of the attention in the file.
        config: of the layers.
        positions: of `before` and x, [S + T].
        seen: [T, S + T].
        before: further rows for keys and values only, [S, width].
    """
    heads, eps = config["num_attention_heads"], config.get("rms_norm_eps", 1e-6)
    kv_heads = config.get("num_key_value_heads", heads)
    rows = x if before is None else torch.cat((before, x))
    q = projected(x, tensors, f"{name}.q_proj").unflatten(-1, (heads, -1))
    gate = None
    k = projected(rows, tensors, f"{name}.k_proj").unflatten(-1, (kv_heads, -1))
    v = projected(rows, tensors, f"{name}.v_proj").unflatten(-1, (kv_heads, -1))
    if q.shape[-1] == 2 * k.shape[-1]:
        q, gate = q.chunk(2, -1)
    if f"{name}.q_norm.weight" in tensors:
        q = rms(q, tensors[f"{name}.q_norm.weight"], eps)
        k = rms(k, tensors[f"{name}.k_norm.weight"], eps)
    q = rotated(q, positions[-len(x) :], theta(config), turning(config))
    k = rotated(k, positions, theta(config), turning(config))
    mixed = spread(q, k, v, seen, q.shape[-1] ** -0.5)
    if gate is not None:
        mixed = mixed * gate.flatten(1).sigmoid()
    return projected(mixed, tensors, f"{name}.o_proj")


def swiglu(x: Tensor, tensors: Tensors, name: str) -> Tensor:
    """The gated feed-forward layer."""
    gate = torch.nn.functional.silu(projected(x, tensors, f"{name}.gate_proj"))
    return projected(gate * projected(x, tensors, f"{name}.up_proj"), tensors, f"{name}.down_proj")
