"""What DeepSeek-V3's block has beyond others: latent attention, and experts in groups (as GLM-4.5)."""

from typing import Any

import torch
from torch import Tensor

from heads.arithmetic import projected, rms, rotated, spread, swiglu, theta
from heads.files import HIDDEN, Random

SIZES = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "rope_interleave": True,
    "n_group": 2,
    "topk_group": 1,
}


def random_attention(random: Random, name: str) -> dict[str, Tensor]:
    """Latent attention of four heads, of `SIZES`."""
    return {
        f"{name}.q_a_proj.weight": random.linear(24, HIDDEN),
        f"{name}.q_a_layernorm.weight": random.gain(24),
        f"{name}.q_b_proj.weight": random.linear(4 * 12, 24),
        f"{name}.kv_a_proj_with_mqa.weight": random.linear(16 + 4, HIDDEN),
        f"{name}.kv_a_layernorm.weight": random.gain(16),
        f"{name}.kv_b_proj.weight": random.linear(4 * 16, 16),
        f"{name}.o_proj.weight": random.linear(HIDDEN, 4 * 8),
    }


def random_experts(random: Random, name: str, count: int = 4) -> dict[str, Tensor]:
    """Routed experts, one shared expert, and the router with its correction."""
    tensors = {
        f"{name}.gate.weight": random.linear(count, HIDDEN),
        f"{name}.gate.e_score_correction_bias": random.normal(count, scale=0.1),
    }
    for one in ("shared_experts", *(f"experts.{i}" for i in range(count))):
        tensors |= random.mlp(f"{name}.{one}")
    return tensors


def latent_attention(
    x: Tensor,
    w: dict[str, Tensor],
    name: str,
    config: dict[str, Any],
    positions: Tensor,
    seen: Tensor,
) -> Tensor:
    """Attention whose keys and values come from one latent vector; their positions turn apart from it.

    The norms of the latent vectors have an eps of 1e-6 whatever the config says. Turning dimensions are
    interleaved in the file: pairs (0, 1), (2, 3), ...
    """
    heads, still = config["num_attention_heads"], config["qk_nope_head_dim"]
    turning = config["qk_rope_head_dim"]
    order = torch.arange(turning)
    if config.get("rope_interleave", True):
        order = torch.cat((order[::2], order[1::2]))
    q = rms(projected(x, w, f"{name}.q_a_proj"), w[f"{name}.q_a_layernorm.weight"], 1e-6)
    q = projected(q, w, f"{name}.q_b_proj").unflatten(-1, (heads, -1))
    q = torch.cat(
        (q[..., :still], rotated(q[..., still:][..., order], positions, theta(config))), -1
    )
    both = projected(x, w, f"{name}.kv_a_proj_with_mqa")
    latent = rms(both[:, :-turning], w[f"{name}.kv_a_layernorm.weight"], 1e-6)
    shared = rotated(both[:, None, -turning:][..., order], positions, theta(config))
    expanded = projected(latent, w, f"{name}.kv_b_proj").unflatten(-1, (heads, -1))
    k = torch.cat((expanded[..., :still], shared.expand(-1, heads, -1)), -1)
    mixed = spread(q, k, expanded[..., still:], seen, q.shape[-1] ** -0.5)
    return projected(mixed, w, f"{name}.o_proj")


def experts(x: Tensor, w: dict[str, Tensor], name: str, config: dict[str, Any]) -> Tensor:
    """One shared expert and the best of many: chosen by corrected scores, weighted by the plain ones."""
    scores = (x @ w[f"{name}.gate.weight"].T).sigmoid()
    groups = (scores + w[f"{name}.gate.e_score_correction_bias"]).unflatten(
        -1, (config["n_group"], -1)
    )
    best = groups.topk(2, -1).values.sum(-1).topk(config["topk_group"], -1).indices
    allowed = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter(1, best, True)
    corrected = groups.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
    chosen = corrected.topk(config["num_experts_per_tok"], -1).indices
    weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    if config.get("norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * config["routed_scaling_factor"]
    routed = [swiglu(x, w, f"{name}.experts.{i}") for i in range(scores.shape[-1])]
    shared = swiglu(x, w, f"{name}.shared_experts")
    return shared + (weights[..., None] * torch.stack(routed, 1)).sum(1)
