"""Tokenizers that differ, and tiny random models with them."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def metaspace() -> PreTrainedTokenizerFast:
    """As SentencePiece's: `▁` for spaces, one more before the text, byte fallback, `<s>` before it."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", *"abcdefghijklmnopqrstuvwxyzT.", "th", "▁th", "▁the", "nd", "▁and", "en", "end"]
    merges = [
        ("t", "h"),
        ("▁", "th"),
        ("▁th", "e"),
        ("n", "d"),
        ("a", "nd"),
        ("▁", "and"),
        ("e", "n"),
    ]
    words += ["and", "\n", "\n\n"]
    merges.append(("\n", "\n"))
    core = Tokenizer(
        models.BPE(
            {word: i for i, word in enumerate(words)}, [*merges, ("en", "d")],
            unk_token="<unk>", byte_fallback=True, fuse_unk=True,
        )
    )  # fmt: skip
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def unigram() -> PreTrainedTokenizerFast:
    """A trained one of 64,256 pieces (package `mon-tokenizer`): byte fallback, and text is normalised."""
    core = Tokenizer.from_str(
        (files("mon_tokenizer") / "data" / "mon_tokenizer.json").read_text("utf-8")
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )


def save_tiny_model(folder: Path, tokenizer: Any, seed: int = 0) -> Path:
    """Write a random Llama of one layer with this tokenizer; its greedy texts vary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=256, initializer_range=0.4,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
