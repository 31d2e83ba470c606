"""MTP modules of target checkpoints: one more layer on the norms of the embedding and of the last state.

The pair (f_t, x_{t+1}) stands at position t (vLLM; transformers and speculators count from 1 or 0); a shift
of all positions changes nothing, except with `zero_first`. f is the target's state after its final norm, by
default; the recycled state is the module's output after its own last norm ("post") or before it ("pre").
The names and orders:

    deepseek, glm   model.layers.{n}.{enorm,hnorm,eh_proj,shared_head.norm} and the block    [e, h]
    qwen3_next      mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm}, mtp.layers.0     [e, h], 1 + w
    mimo            model.mtp_layers.0.{token_layernorm,hidden_layernorm,input_proj,...}     [h, e]
    speculators     mtp_layers.0.*, the same names                                           [e, h]

n is the number of the target's layers. The block is that of the family: latent attention and experts of
DeepSeek-V3; GLM's attention, half of each head turning, and such experts; Qwen3-Next's gated attention
with a plain feed-forward layer (as Qwen3.5; the experts of Qwen3-Next are left out); Qwen2's with biases.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heads.arithmetic import attention, causal, inner, named, rms, swiglu
from heads.deepseek import SIZES, experts, latent_attention, random_attention, random_experts
from heads.files import HIDDEN, LAYER, Random, write

MOE = {
    "moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "attention_bias": False,
}  # fmt: skip
CONFIGS = {
    "deepseek": {"model_type": "deepseek_v3", **MOE, **SIZES, "num_nextn_predict_layers": 1},
    "glm": {
        "model_type": "glm4_moe", **MOE, "use_qk_norm": True, "head_dim": 8, "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1,
    },
    "qwen3_next": {
        "model_type": "qwen3_next", "head_dim": 8, "partial_rotary_factor": 0.25, "num_experts": 0,
        "num_nextn_predict_layers": 1,
    },
    "mimo": {"model_type": "mimo", "num_nextn_predict_layers": 1, "attention_bias": True},
}  # fmt: skip
ARCHITECTURES = {
    "deepseek": "DeepseekV3ForCausalLM", "glm": "Glm4MoeForCausalLM", "mimo": "MiMoForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}  # fmt: skip
# Of each layout: norm of the embedding, norm of the state, projection, last norm.
NAMES = {
    "deepseek": ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    "qwen3_next": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    "mimo": ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
}
ONE_PLUS = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe_text")

Layout = Literal["deepseek", "glm", "qwen3_next", "mimo", "speculators"]


def checkpoint(
    folder: Path,
    layout: Layout = "deepseek",
    seed: int = 0,
    *,
    target_layers: int = 2,
    embedding: Tensor | None = None,
    head: Tensor | None = None,
    **changes: Any,
) -> None:
    """Write a random MTP module, without the rest of its target: see `add` for one beside a target.

    Args:
        folder: to write to.
        layout: see the module; "speculators" is a checkpoint of its own, on a qwen3 layer.
        seed: of the tensors.
        target_layers: of the target.
        embedding: the copy of the target's that "deepseek" and "glm" may hold.
        head: likewise.
        changes: of the config.
    """
    tensors = _random(layout, seed, target_layers)
    for name, own in (("embed_tokens", embedding), ("shared_head.head", head)):
        if own is not None:
            tensors[f"model.layers.{target_layers}.{name}.weight"] = own
    if layout != "speculators":
        config = {**LAYER, "num_hidden_layers": target_layers, **CONFIGS[layout], **changes}
        write(folder, {"architectures": [ARCHITECTURES[layout]], **config}, tensors)
        return
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": {
            "model_type": "qwen3", **LAYER, "head_dim": 8, "num_hidden_layers": target_layers, **changes,
        },
        "num_nextn_predict_layers": 1,
    }  # fmt: skip
    write(folder, config, tensors)


def add(folder: Path, layout: Layout, seed: int = 0) -> None:
    """Add a random MTP module to a target that was saved in a folder, as a second file with an index.

    The target has the sizes of `files.LAYER`, with those of `CONFIGS` for its family.
    """
    config = json.loads((folder / "config.json").read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (folder / "model.safetensors").rename(folder / first)
    tensors = _random(layout, seed, config["num_hidden_layers"])
    save_file(tensors, folder / second, metadata={"format": "pt"})
    places = dict.fromkeys(load_file(folder / first), first) | dict.fromkeys(tensors, second)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _random(layout: Layout, seed: int, target_layers: int) -> dict[str, Tensor]:
    """The tensors of a module under the names of its layout."""
    random = Random(seed)
    norms = ("input_layernorm", "post_attention_layernorm")
    outer, block, kind = {
        "deepseek": (f"model.layers.{target_layers}", f"model.layers.{target_layers}", "deepseek"),
        "glm": (f"model.layers.{target_layers}", f"model.layers.{target_layers}", "deepseek"),
        "qwen3_next": ("mtp", "mtp.layers.0", "qwen3_next"),
        "mimo": ("model.mtp_layers.0", "model.mtp_layers.0", "mimo"),
        "speculators": ("mtp_layers.0", "mtp_layers.0", "mimo"),
    }[layout]
    enorm, hnorm, project, last = NAMES[kind]
    tensors = {f"{outer}.{name}.weight": random.gain(HIDDEN) for name in (enorm, hnorm, last)}
    tensors[f"{outer}.{project}.weight"] = random.linear(HIDDEN, 2 * HIDDEN)
    tensors |= random.layer(block, *norms, bias=layout == "mimo", qk=layout != "mimo")
    if layout in ("deepseek", "glm"):
        tensors = {name: tensor for name, tensor in tensors.items() if ".mlp." not in name}
        tensors |= random_experts(random, f"{block}.mlp")
    if layout == "deepseek":
        tensors = {name: tensor for name, tensor in tensors.items() if ".self_attn." not in name}
        tensors |= random_attention(random, f"{block}.self_attn")
    if layout == "qwen3_next":
        tensors[f"{block}.self_attn.q_proj.weight"] = random.linear(64, HIDDEN)
        tensors = {name: t - 1 if t.ndim == 1 else t for name, t in tensors.items()}
    return tensors


def rows(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    tokens: list[int],
    features: Tensor,
    drafted: list[int],
    embedding: Tensor,
    head: Tensor,
    recycled: Literal["pre", "post"] = "post",
    zero_first: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits of the pairs of a text and of a path below it, [T - 1 + D, V].

    Row t < T - 1 is that of (f_t, x_{t+1}): it says what follows tokens[t + 1]. Each row from T - 1 on is
    that of the state of the row before and the next drafted token.

    Args:
        tensors: of the files; those of the target may be among them.
        config: of the checkpoint.
        tokens: the text, T tokens; the last is the root.
        features: last states of all tokens but the last, [T - 1, H] or [T - 1, 1, H].
        drafted: the path, D tokens.
        embedding: the target's, [V, H]; read if the module has none.
        head: the target's, [V, H]; read if the module has none.
        recycled: the output after the last norm, or before it.
        zero_first: whether the embedding of the first pair is 0, as in vLLM and SGLang.
        dtype: of the computation.
    """
    layer = inner(config)
    at = f"model.layers.{layer['num_hidden_layers']}"
    own, block, kind = next(
        (own, block, kind)
        for own, block, kind in (
            (at, at, "deepseek"),
            ("mtp", "mtp.layers.0", "qwen3_next"),
            ("model.mtp_layers.0", "model.mtp_layers.0", "mimo"),
            ("mtp_layers.0", "mtp_layers.0", "mimo"),
        )
        if f"{own}.{NAMES[kind][2]}.weight" in tensors
    )
    state_first = own == "model.mtp_layers.0"
    part = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{own}.")}
    if layer.get("model_type") in ONE_PLUS:
        part = {name: 1 + t if t.ndim == 1 else t for name, t in part.items()}
    w, eps = named(part, dtype), layer.get("rms_norm_eps", 1e-6)
    own, block = own.removeprefix("model."), block.removeprefix("model.")
    enorm, hnorm, project, last = (w[f"{own}.{name}.weight"] for name in NAMES[kind])
    embedded = w.get(f"{own}.embed_tokens.weight", embedding.to(dtype))[tokens[1:] + drafted]
    if zero_first:
        embedded[0] = 0
    states = features.to(dtype).reshape(len(tokens) - 1, -1)
    attend = latent_attention if "kv_lora_rank" in layer else attention
    while True:
        left, right = rms(embedded[: len(states)], enorm, eps), rms(states, hnorm, eps)
        x = torch.cat((right, left) if state_first else (left, right), -1) @ project.T
        positions, seen = torch.arange(len(x)), causal(len(x))
        normed = rms(x, w[f"{block}.input_layernorm.weight"], eps)
        x = x + attend(normed, w, f"{block}.self_attn", layer, positions, seen)
        normed = rms(x, w[f"{block}.post_attention_layernorm.weight"], eps)
        routed = f"{block}.mlp.gate.weight" in w
        x = x + (
            experts(normed, w, f"{block}.mlp", layer)
            if routed
            else swiglu(normed, w, f"{block}.mlp")
        )
        normed = rms(x, last, eps)
        if len(states) == len(embedded):
            break
        states = torch.cat((states, (normed if recycled == "post" else x)[-1:]))
    return normed @ w.get(f"{own}.shared_head.head.weight", head.to(dtype)).T
