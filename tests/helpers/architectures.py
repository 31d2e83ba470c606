"""Which architectures of transformers run trees, and by which route: one line each, to compare versions.

    python tests/helpers/architectures.py > tests/helpers/architectures.txt

`git diff` shows what a change has made better or worse.

Every decoder and encoder-decoder that transformers knows is built with random weights, at a tiny size where
its config has the usual names, and probed as at load. Those that stay large are not built.
"""

import re
import warnings
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from treespec.errors import TreespecError
from treespec.models.probe import probe
from treespec.models.routes import OwnAttention

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "d_model": 32, "n_embd": 32, "intermediate_size": 64,
    "ffn_dim": 64, "d_ff": 64, "d_kv": 8, "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2,
    "num_decoder_layers": 2, "decoder_layers": 2, "encoder_layers": 1, "num_attention_heads": 4,
    "n_head": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "decoder_ffn_dim": 64, "encoder_ffn_dim": 64,
    "moe_intermediate_size": 32, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "rotary_dim": 4,
    "max_position_embeddings": 256, "n_positions": 256, "word_embed_proj_dim": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True,
}  # fmt: skip
LARGEST = 30_000_000


def tiny(name: str) -> Any:
    """A tiny random model of this type; raises whatever its code raises for such sizes."""
    usual = transformers.AutoConfig.for_model(name)
    text = usual.get_text_config(decoder=True)
    config = type(text)(**{key: value for key, value in SIZES.items() if hasattr(text, key)})
    head = transformers.AutoModelForCausalLM
    if name in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        head = transformers.AutoModelForSeq2SeqLM
    with torch.device("meta"):
        numbers = sum(x.numel() for x in head.from_config(config).parameters())
    if numbers > LARGEST:
        raise ValueError(f"not built: {numbers / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = head.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn_like(weight) * 1.3 * weight.shape[-1] ** -0.5)
    return model.eval()


def verdict(name: str) -> str:
    try:
        model = tiny(name)
    except Exception as error:
        return f"-      {type(error).__name__}: {error}"
    try:
        route = probe(model).route
    except TreespecError as error:
        return f"no     {error}"
    return "yes    our attention" if isinstance(route, OwnAttention) else "yes    its own attention"


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    decoders = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    both = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    print(
        f"transformers {transformers.__version__}: type, whether it runs trees, by which route or why not"
    )
    for name in sorted({*decoders, *both}):
        line = re.sub(r"\s+", " ", verdict(name))
        print(f"{name:28} {line[:160]}", flush=True)


if __name__ == "__main__":
    main()
