"""EAGLE-3 and 3.1: states of several layers, joined; a first layer on [embedding, state]; an own head.

The pair (f_t, x_{t+1}) stands at position t, that of f_t, as in the authors' code and in vLLM (speculators
counts from 1); a shift of all positions changes nothing. Each f_t is the concatenation of its states in
the order of the layer ids, projected by `fc` once; recycled states do not pass `fc`.

Flags: `norm_before_residual` adds the attention to the *normed* state; `norm_before_fc` norms the
concatenation by one gain, `fc_norm` each state by its own; `norm_output` recycles the normed output.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heads.arithmetic import attention, causal, inner, named, rms, swiglu
from heads.files import DRAFT_VOCAB, HIDDEN, LAYER, VOCAB, Random, reduced, write

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def checkpoint(
    folder: Path,
    layout: Literal["eagle3", "specforge", "nvidia", "vllm", "speculators"] = "eagle3",
    seed: int = 0,
    *,
    layer_ids: tuple[int, ...] | None = None,
    small: bool = True,
    embedding: bool = False,
    target_hidden: int = HIDDEN,
    count: int = 3,
    aux: bool = True,
    layers: int = 1,
    qwen3: bool = False,
    flags: tuple[str, ...] = (),
    **changes: Any,
) -> None:
    """Write a random EAGLE-3 head.

    Args:
        folder: to write to.
        layout: "eagle3" is SafeAILab's `pytorch_model.bin` with `midlayer.*`; "specforge" the same names in
            safetensors; "nvidia" with flags and layer ids in `eagle_config`; "vllm" with the prefix
            `model.` and `layers.0.*`; "speculators" with `layers.0.*` and a nested config of the layers.
        seed: of the tensors.
        layer_ids: written as `eagle_aux_hidden_state_layer_ids`, as they are; None leaves the key out.
        small: with a draft vocabulary of 40 tokens, `d2t` and `t2d`.
        embedding: with an own embedding.
        target_hidden: width of the target, if it is not that of the draft.
        count: number of joined states.
        aux: False for a head that reads the target's post-norm state alone, without `fc`
            (`use_aux_hidden_state: false`, in `eagle_config`).
        layers: of the draft; those after the first are ordinary.
        qwen3: with norms of queries and keys.
        flags: those that are on, of `FLAGS`.
        changes: of the config of the layers.
    """
    random = Random(seed)
    first = "midlayer" if layout in ("eagle3", "specforge", "nvidia") else "layers.0"
    norms = ("input_layernorm", "post_attention_layernorm")
    tensors = {
        **({"fc.weight": random.linear(HIDDEN, count * target_hidden)} if aux else {}),
        "norm.weight": random.gain(HIDDEN),
        "lm_head.weight": random.head(DRAFT_VOCAB if small else VOCAB),
        **random.layer(first, "hidden_norm", *norms, qk=qwen3),
        **random.attention(f"{first}.self_attn", inputs=2 * HIDDEN, norms=qwen3),
    }
    for i in range(1, layers):
        tensors |= random.layer(f"layers.{i}", *norms, qk=qwen3)
    if "norm_before_fc" in flags:
        tensors["input_norm.weight"] = random.gain(count * target_hidden)
    if "fc_norm" in flags:
        tensors |= {f"fc_norm.{i}.weight": random.gain(target_hidden) for i in range(count)}
    if embedding:
        tensors["embed_tokens.weight"] = random.embedding(VOCAB)
    if small:
        tensors["d2t"], tensors["t2d"] = random.kept()
    layer = {**LAYER, "num_hidden_layers": layers, **({"head_dim": 8} if qwen3 else {}), **changes}
    ids = {} if layer_ids is None else {"eagle_aux_hidden_state_layer_ids": list(layer_ids)}
    on = dict.fromkeys(flags, True)
    width = {} if target_hidden == HIDDEN else {"target_hidden_size": target_hidden}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **layer, **width,
        "draft_vocab_size": DRAFT_VOCAB if small else VOCAB,
    }  # fmt: skip
    if layout == "nvidia" or not aux:
        nested = {key: on[key] for key in on if key != "norm_before_residual"}
        config["eagle_config"] = {"use_aux_hidden_state": aux, **ids, **nested}
        config |= {key: on[key] for key in on if key not in nested}
    elif layout == "speculators":
        kind = "qwen3" if qwen3 else "llama"
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1,
                        "accept_tolerance": 0.0,
                    }
                ],
                "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
            },
            "transformer_layer_config": {"model_type": kind, **layer},
            "draft_vocab_size": config["draft_vocab_size"],
            "target_hidden_size": width.get("target_hidden_size"),
            "embed_requires_grad": False,
            **dict.fromkeys(FLAGS, False), **on, **ids,
        }  # fmt: skip
    else:
        config |= {**on, **ids}
    if layout == "vllm":
        outside = ("lm_head.weight", "d2t", "t2d")
        tensors = {n if n in outside else f"model.{n}": tensor for n, tensor in tensors.items()}
    file = "pytorch_model.bin" if layout == "eagle3" else "model.safetensors"
    write(folder, config, tensors, file)


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
    """Logits of the pairs of a text and of a path below it, [T - 1 + D, V]; -inf for unknown tokens.

    Row t < T - 1 is that of (f_t, x_{t+1}): it says what follows tokens[t + 1]. Each row from T - 1 on is
    that of the state of the row before and the next drafted token.

    Args:
        tensors: of the file.
        config: of the checkpoint.
        tokens: the text, T tokens; the last is the root.
        features: states of all tokens but the last, in the order of the layer ids, [T - 1, F, H].
        drafted: the path, D tokens.
        embedding: the target's, [V, H]; read if the file has none.
        head: the target's, [V, H]; read if the file has none.
        dtype: of the computation.
    """
    w, layer = named(tensors, dtype), inner(config)
    w = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in w.items()}
    flags = {**config, **config.get("eagle_config", {})}
    eps = layer.get("rms_norm_eps", 1e-6)
    embedded = w.get("embed_tokens.weight", embedding.to(dtype))[tokens[1:] + drafted]
    states = features.to(dtype).reshape(len(tokens) - 1, -1)
    if flags.get("norm_before_fc"):
        states = rms(states, w["input_norm.weight"], eps)
    if flags.get("fc_norm"):
        parts = enumerate(features.to(dtype).unbind(1))
        states = torch.cat([rms(part, w[f"fc_norm.{i}.weight"], eps) for i, part in parts], -1)
    if flags.get("use_aux_hidden_state", True):
        states = states @ w["fc.weight"].T
    while True:
        positions, seen = torch.arange(len(states)), causal(len(states))
        left = rms(embedded[: len(states)], w["layers.0.input_layernorm.weight"], eps)
        right = rms(states, w["layers.0.hidden_norm.weight"], eps)
        x = right if flags.get("norm_before_residual") else states
        both = torch.cat((left, right), -1)
        for i in range(layer["num_hidden_layers"]):
            if i:
                both = rms(x, w[f"layers.{i}.input_layernorm.weight"], eps)
            x = x + attention(both, w, f"layers.{i}.self_attn", layer, positions, seen)
            normed = rms(x, w[f"layers.{i}.post_attention_layernorm.weight"], eps)
            x = x + swiglu(normed, w, f"layers.{i}.mlp")
        normed = rms(x, w["norm.weight"], eps)
        if len(states) == len(embedded):
            break
        states = torch.cat((states, (normed if flags.get("norm_output") else x)[-1:]))
    logits = normed @ w.get("lm_head.weight", head.to(dtype)).T
    return reduced(logits, w, len(embedding))
