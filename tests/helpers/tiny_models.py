"""Tiny random models of real architectures, whose greedy texts vary."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCAB = 96
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
GEMMA = {**SMALL, **MIXED, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 8}
FALCON = {
    name: SMALL[name] for name in SMALL if "intermediate" not in name and "key_value" not in name
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": VOCAB}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL),
    "qwen2": ("Qwen2", SMALL),
    "qwen3": ("Qwen3", {**SMALL, "head_dim": 8}),
    "mistral": ("Mistral", {**SMALL, "sliding_window": 8}),
    "gemma2": (
        "Gemma2",
        {
            **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0,
            "query_pre_attn_scalar": 1,
        },
    ),
    "gemma3": ("Gemma3Text", GEMMA),
    "phi": ("Phi", SMALL),
    "phi3": ("Phi3", SMALL),
    "gpt2": ("GPT2", GPT2),
    "gpt_neox": ("GPTNeoX", SMALL),
    "opt": ("OPT", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "olmo2": ("Olmo2", SMALL),
    "starcoder2": ("Starcoder2", {**SMALL, "sliding_window": 8}),
    "cohere": ("Cohere", SMALL),
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 4}),
    "stablelm": ("StableLm", SMALL),
    "falcon": ("Falcon", {**FALCON, "alibi": False}),
    "gptj": ("GPTJ", {**GPT2, "rotary_dim": 4}),
    "falcon_alibi": ("Falcon", {**FALCON, "alibi": True}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB}),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB, "state_size": 4}),
    "gpt_oss": (
        "GptOss",
        {
            **SMALL, "head_dim": 8, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64,
            },
        },
    ),
    "gpt_neo": (
        "GPTNeo",
        {
            "hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": VOCAB, "window_size": 8,
            "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256,
        },
    ),
    "llama4": ("Llama4Text", {**SMALL, "attention_chunk_size": 16, "head_dim": 8, "num_local_experts": 2}),
    "jamba": ("Jamba", {**SMALL, "use_mamba_kernels": False, "num_experts": 2}),
}  # fmt: skip


def build(name: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model whose greedy text varies: small embeddings, random norms, sinks, strong attention."""
    family, settings = CONFIGS[name]
    settings = {**settings, **changes}
    if "max_position_embeddings" in settings and family in ("Bloom",):
        settings.pop("max_position_embeddings")
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**settings)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if path.endswith("sinks"):
                weight.copy_(1 + torch.randn_like(weight))
            elif weight.ndim == 1:
                spread = 0.02 if path.endswith("bias") else 0.3
                weight.copy_(weight.mean().round() + spread * torch.randn_like(weight))
            elif "embed" in path or "wte" in path or "wpe" in path:
                weight.copy_(0.05 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * 1.3 * weight.shape[-1] ** -0.5)
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            head.weight.copy_(0.3 * torch.randn_like(head.weight))
    return model.eval()


def perturbed(model: PreTrainedModel, scale: float, seed: int = 1) -> PreTrainedModel:
    """A copy with noise of `scale` standard deviations of each weight: a draft that is sometimes right."""
    generator = torch.Generator().manual_seed(seed)
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in twin.parameters():
            if weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight += scale * weight.std() * noise
    return twin
