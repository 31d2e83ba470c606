"""Block drafters: DFlash (two-way within the block), JetSpec (causal), and DFlash as speculators writes it.

One call gives all depths. The block is [anchor, mask, mask, ...], embedded by the target's embedding; it
follows the text, so its anchor stands at position P, where P tokens stand before it. In every layer keys
and values are those of the projected features of these P tokens (projected once, normed once, without the
layer's own norm), then those of the block; queries are the block alone.

Layer ids: id i of the authors (`dflash_config`, or flat in transformers) is the output of layer i from 0,
`hidden_states[i + 1]`, our boundary i + 1. In speculators' `aux_hidden_state_layer_ids` the number *is* the
boundary; its converter adds 1, and leaves the last layer out.

Rows: those of the masks, "in place" (row i says the token at its own position), block_size - 1 in number;
with `sample_from_anchor` row i says the next token, and the anchor's row counts: block_size in number.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from heads.arithmetic import attention, inner, named, rms, swiglu
from heads.files import DRAFT_VOCAB, HIDDEN, LAYER, VOCAB, Random, reduced, write

# The names of transformers' class (right).
NAMES = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def checkpoint(
    folder: Path,
    layout: Literal["dflash", "jetspec", "transformers", "speculators"] = "dflash",
    seed: int = 0,
    *,
    layer_ids: tuple[int, ...] | None = (0, 1, 2),
    layers: int = 2,
    block_size: int = 6,
    mask: int = 95,
    target_layers: int = 4,
    nested_size: bool = False,
    small: bool = False,
    sample_from_anchor: bool = False,
    causal: bool | None = None,
    **changes: Any,
) -> None:
    """Write a random block drafter.

    Args:
        folder: to write to.
        layout: "dflash" and "jetspec" are the authors' (jetspec with `causal_head`); "transformers" has
            flat keys and an `encoder`; "speculators" a nested config of the layers.
        seed: of the tensors.
        layer_ids: in the layout's own count; None leaves the key out, then the tensors fit the default ids.
        layers: of the draft.
        block_size: tokens of a block, the anchor among them.
        mask: the token of the masks.
        target_layers: of the target.
        nested_size: `block_size` within `dflash_config`, as newer checkpoints have it.
        small: with a draft vocabulary of 40 tokens ("speculators").
        sample_from_anchor: whether the anchor's row counts ("speculators").
        causal: whether the block is causal; None as the layout has it.
        changes: of the config of the layers.
    """
    random = Random(seed)
    count = layers if layer_ids is None else len(layer_ids)
    tensors = {
        "fc.weight": random.linear(HIDDEN, count * HIDDEN),
        "hidden_norm.weight": random.gain(HIDDEN),
        "norm.weight": random.gain(HIDDEN),
    }
    norms = ("input_layernorm", "post_attention_layernorm")
    for i in range(layers):
        tensors |= random.layer(f"layers.{i}", *norms, qk=True)
        tensors[f"layers.{i}.self_attn.q_norm.weight"] *= (
            3  # rows of equal masks differ by attention only
        )
    layer = {
        **LAYER, "model_type": "qwen3", "num_hidden_layers": layers, "head_dim": 8, "attention_bias": False,
        **changes,
    }  # fmt: skip
    ids = None if layer_ids is None else list(layer_ids)
    if layout in ("dflash", "jetspec"):
        nested = {"mask_token_id": mask} | ({} if ids is None else {"target_layer_ids": ids})
        if layout == "jetspec" or causal is not None:
            nested["causal_head"] = layout == "jetspec" if causal is None else causal
        (nested if nested_size else layer)["block_size"] = block_size
        config = {
            "architectures": ["DFlashDraftModel"], **layer, "num_target_layers": target_layers,
            "dflash_config": nested,
        }  # fmt: skip
    elif layout == "transformers":
        tensors = {NAMES.get(name, name): tensor for name, tensor in tensors.items()}
        config = {
            **layer, "architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant",
            "block_size": block_size, "mask_token_id": mask, "target_layer_ids": ids,
            "layer_types": ["full_attention"] * layers,
            "rope_parameters": {"rope_type": "default", "rope_theta": layer["rope_theta"]},
        }  # fmt: skip
    else:
        if small:
            tensors["d2t"], tensors["t2d"] = random.kept()
            tensors["lm_head.weight"] = random.head(DRAFT_VOCAB)
        config = {
            "architectures": ["DFlashDraftModel"],
            "speculators_model_type": "dflash",
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": "dflash",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0,
                        "speculative_tokens": block_size - 1 + sample_from_anchor,
                    }
                ],
                "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]},
            },
            "transformer_layer_config": layer,
            "draft_vocab_size": DRAFT_VOCAB if small else VOCAB,
            "block_size": block_size,
            "aux_hidden_state_layer_ids": ids,
            "mask_token_id": mask,
            "sample_from_anchor": sample_from_anchor,
        }  # fmt: skip
    write(folder, config, tensors)


def rows(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    features: Tensor,
    anchor: int,
    embedding: Tensor,
    head: Tensor,
    path: list[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Logits of the block's rows, [block_size - 1 or block_size, V]; -inf for unknown tokens.

    Args:
        tensors: of the file.
        config: of the checkpoint.
        features: states of all P tokens before the anchor, in the order of the layer ids, [P, F, H].
        anchor: the last committed token.
        embedding: the target's, [V, H].
        head: the target's, [V, H]; read if the file has none.
        path: tokens in place of the first masks: the rows are then conditional on them.
        dtype: of the computation.
    """
    w, layer = named(tensors, dtype), inner(config)
    old = {new: old for old, new in NAMES.items()}
    w = {old.get(name, name): tensor for name, tensor in w.items()}
    flags = {**config, **config.get("dflash_config", {})}
    eps, size = layer.get("rms_norm_eps", 1e-6), flags["block_size"]
    known = [anchor, *(path or [])]
    block = known + [flags["mask_token_id"]] * (size - len(known))
    x = embedding.to(dtype)[block]
    before = rms(features.to(dtype).flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    positions = torch.arange(len(before) + size)
    seen = torch.ones(size, len(positions), dtype=torch.bool)
    if flags.get("causal_head", flags.get("causal")):
        seen = seen.tril(len(before))
    for i in range(layer["num_hidden_layers"]):
        normed = rms(x, w[f"layers.{i}.input_layernorm.weight"], eps)
        x = x + attention(normed, w, f"layers.{i}.self_attn", layer, positions, seen, before)
        normed = rms(x, w[f"layers.{i}.post_attention_layernorm.weight"], eps)
        x = x + swiglu(normed, w, f"layers.{i}.mlp")
    x = rms(x, w["norm.weight"], eps)
    if not flags.get("sample_from_anchor"):
        x = x[1:]
    return reduced(x @ w.get("lm_head.weight", head.to(dtype)).T, w, len(embedding))
