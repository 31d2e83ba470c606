"""EAGLE-1, EAGLE-2 and HASS: one layer on the target's last state and the next token's embedding.

The pair (f_t, x_{t+1}) stands at position t, that of f_t, as in the authors' code and in vLLM; a shift of
all positions changes nothing. f is the state *after* the target's final norm. Layer 0 has no norm before
its attention; its output is the next state as it is, and the target's head reads it.

With `layernorms` (a variant that speculators' converter reads) the embedding is normed, the layer has its
first norm after all, and the head reads a normed output; the recycled state stays un-normed.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heads.arithmetic import attention, causal, inner, named, projected, rms, swiglu
from heads.files import HIDDEN, LAYER, VOCAB, Random, write

# The names of speculators 0.4 (right), and those of threads about earlier versions.
NAMES = {
    "embed_layernorm": "embedding_layernorm",
    "lm_head_layernorm": "pre_lm_head_layernorm",
    "hidden_layernorm": "transformer.input_layernorm",
    "fc": "fusion_fc",
    "layers.0": "transformer",
    "post_embedding_layernorm": "embedding_layernorm",
}


def checkpoint(
    folder: Path,
    layout: Literal["eagle", "speculators"] = "eagle",
    seed: int = 0,
    *,
    bias: bool | None = None,
    layernorms: bool = False,
    embedding: bool = True,
    steady: bool = False,
    **changes: Any,
) -> None:
    """Write a random EAGLE head.

    Args:
        folder: to write to.
        layout: "eagle" is the authors' `pytorch_model.bin`; "speculators" the renamed safetensors.
        seed: of the tensors.
        bias: of fc. In "eagle" None leaves the key out, which means true.
        layernorms: with the three further norms.
        embedding: with the own `embed_tokens` ("eagle"; the other layout never has one).
        steady: as a trained head is, whose recycled states have the size of the target's: what its layer
            adds is small against what it reads, so that rounding does not grow from level to level.
        changes: of the config of the layer, as `rope_theta`.
    """
    random = Random(seed)
    tensors = {"fc.weight": random.fusion(HIDDEN, HIDDEN)}
    tensors |= random.layer("layers.0", "post_attention_layernorm")
    if bias is not False:
        tensors["fc.bias"] = random.normal(HIDDEN, scale=0.3)
    if steady:
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"layers.0.{part}.weight"] *= 0.25
    if layernorms:
        for norm in ("embed_layernorm", "hidden_layernorm", "lm_head_layernorm"):
            tensors[f"{norm}.weight"] = random.gain(HIDDEN)
    if layout == "eagle":
        if embedding:
            tensors["embed_tokens.weight"] = random.embedding(VOCAB)
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **LAYER, **changes}
        config |= {} if bias is None else {"bias": bias}
        write(folder, config, tensors, "pytorch_model.bin")
        return
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "speculators_version": "0.4.0",
        "speculators_config": {
            "algorithm": "eagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": {"model_type": "llama", **LAYER, **changes},
        "layernorms": layernorms,
        "fusion_bias": bias is not False,
    }
    write(folder, config, _renamed(tensors))


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of speculators 0.4."""
    result = {}
    for name, tensor in tensors.items():
        old = next((old for old in NAMES if name.startswith(f"{old}.")), None)
        result[name if old is None else NAMES[old] + name.removeprefix(old)] = tensor
    return result


def rows(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    tokens: list[int],
    features: Tensor,
    drafted: list[int],
    embedding: Tensor,
    head: Tensor,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits of the pairs of a text and of a path below it, [T - 1 + D, V].

    Row t < T - 1 is that of (f_t, x_{t+1}): it says what follows tokens[t + 1]. Each row from T - 1 on is
    that of the state of the row before and the next drafted token.

    Args:
        tensors: of the file.
        config: of the checkpoint.
        tokens: the text, T tokens; the last is the root.
        features: post-norm states of all tokens but the last, [T - 1, H] or [T - 1, 1, H].
        drafted: the path, D tokens.
        embedding: the target's, [V, H]; read if the file has none.
        head: the target's, [V, H].
        dtype: of the computation.
    """
    w, layer = _renamed(named(tensors, dtype)), inner(config)
    eps = layer.get("rms_norm_eps", 1e-6)
    embedded = w.get("embed_tokens.weight", embedding.to(dtype))[tokens[1:] + drafted]
    if "embedding_layernorm.weight" in w:
        embedded = rms(embedded, w["embedding_layernorm.weight"], eps)
    states = features.to(dtype).reshape(len(tokens) - 1, -1)
    while True:
        pairs = torch.cat((embedded[: len(states)], states), -1)
        x = projected(pairs, w, "fusion_fc")
        normed = x
        if "transformer.input_layernorm.weight" in w:
            normed = rms(x, w["transformer.input_layernorm.weight"], eps)
        positions = torch.arange(len(x))
        x = x + attention(normed, w, "transformer.self_attn", layer, positions, causal(len(x)))
        normed = rms(x, w["transformer.post_attention_layernorm.weight"], eps)
        x = x + swiglu(normed, w, "transformer.mlp")
        if len(states) == len(embedded):
            break
        states = torch.cat((states, x[-1:]))
    if "pre_lm_head_layernorm.weight" in w:
        x = rms(x, w["pre_lm_head_layernorm.weight"], eps)
    return x @ head.to(dtype).T
