"""Tiny random encoder-decoder models, whose greedy texts vary."""

from typing import Any

import torch
import transformers
from transformers import GenerationConfig, PreTrainedModel

VOCAB = 96
SOURCES = ("def walk(tree):", "for node in tree.children:\n    yield node", "walk(node)")
T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 16, "relative_attention_max_distance": 32,
    "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "max_position_embeddings": 128, "decoder_start_token_id": 2, "bos_token_id": None,
}  # fmt: skip

ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", T5),
    "mt5": ("MT5", {**T5, "feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5", T5),
    "bart": ("Bart", BART),
    "mbart": ("MBart", BART),
    "pegasus": ("Pegasus", {**BART, "decoder_start_token_id": 0}),
    "marian": ("Marian", {**BART, "pad_token_id": 95, "decoder_start_token_id": 95}),
    "m2m_100": ("M2M100", BART),
}
CLASSES = {"marian": "MarianMTModel"}


def encoder_decoder(name: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model with small embeddings, random norms and strong attention and biases."""
    family, settings = ENCODER_DECODERS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        **{
            "vocab_size": VOCAB,
            "tie_word_embeddings": False,
            **settings,
            **changes,
            "eos_token_id": None,
        }
    )
    kind = CLASSES.get(name, f"{family}ForConditionalGeneration")
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.ndim == 1:
                spread = 0.02 if path.endswith("bias") else 0.3
                weight.copy_(weight.mean().round() + spread * torch.randn_like(weight))
            elif "relative_attention_bias" in path:
                weight.copy_(2 * torch.randn_like(weight))
            elif "embed_positions" in path and not weight.requires_grad:
                continue  # sinusoids
            elif "shared" in path or "embed" in path:
                weight.copy_((0.2 if "t5" in name else 1.0) * torch.randn_like(weight))
            else:
                gain = 2 if "t5" in name else 0.7
                weight.copy_(gain * torch.randn_like(weight) * weight.shape[-1] ** -0.5)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=settings["decoder_start_token_id"], pad_token_id=config.pad_token_id
    )
    return model.eval()
