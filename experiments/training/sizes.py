"""Sizes and training schedules of the two models, and how models are built and saved."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from treespec.experiments.training.loop import Schedule


@dataclass(frozen=True)
class ModelSize:
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class PairSchedule(Schedule):
    """Short blocks first, long blocks at the end of a budget of tokens."""

    batch_tokens: int = 4096
    length: int = 512
    long_share: float = 0.12
    long_length: int = 4096
    long_rows: int = 2


@dataclass(frozen=True)
class PairSize:
    """Everything that differs between the embedded pair and a miniature of it."""

    vocab: int
    context: int
    target: ModelSize
    draft: ModelSize
    target_schedule: PairSchedule
    draft_schedule: PairSchedule


EMBEDDED = PairSize(
    vocab=4096,
    context=4096,
    target=ModelSize(hidden=384, layers=5, intermediate=960, heads=6, kv_heads=2, head_dim=64),
    draft=ModelSize(hidden=128, layers=2, intermediate=384, heads=4, kv_heads=2, head_dim=32),
    target_schedule=PairSchedule(muon_lr=4e-3, adamw_lr=3e-3),
    draft_schedule=PairSchedule(muon_lr=6e-3, adamw_lr=4e-3),
)

# The same recipe for tests: takes a few seconds, with the same grouping of heads.
MINIATURE_SCHEDULE = PairSchedule(
    muon_lr=4e-3,
    adamw_lr=3e-3,
    warmup_steps=2,
    batch_tokens=128,
    length=32,
    long_length=64,
)
MINIATURE = PairSize(
    vocab=300,
    context=64,
    target=ModelSize(hidden=32, layers=2, intermediate=48, heads=4, kv_heads=2, head_dim=8),
    draft=ModelSize(hidden=16, layers=1, intermediate=24, heads=2, kv_heads=1, head_dim=8),
    target_schedule=MINIATURE_SCHEDULE,
    draft_schedule=MINIATURE_SCHEDULE,
)


def build_model(
    size: ModelSize, pair: PairSize, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    """A freshly initialised float32 model with a neutral generation config."""
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=pair.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=pair.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    return model


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> LlamaForCausalLM:
    """Save `model` in bfloat16 with the tokenizer, and return the saved weights in float32.

    Evaluation and distillation afterwards thus use the published weights, rounding included.
    """
    model = model.bfloat16()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.float().eval()
