"""Measure what one level of a tree costs when a trained head drafts it, against the bytes that it reads.

    python -m treespec.experiments.research.benchmarks.head_levels

EAGLE-3 heads of 1M and 5M parameters (without embedding and vocabulary rows), with rows for 6,144 and for
49,152 words, behind 128 tokens, in compiled passes. A level is a quarter of a drafted chain of 4: the pass
over one node and the choice of its child. The goal: at most 1.3 times (the bytes that it reads, vocabulary
rows included) over the measured bandwidth, and 0.1 ms. Weights are random: they cost what trained ones do.
"""

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from treespec import Law, Sampling, TorchCoins
from treespec.draft import Eagle3
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.joined_passes import medians
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Observer
from treespec.tree import TreeShape

WIDTH, WORDS, PREFIX, DEPTH, ROUNDS = 576, 49_152, 128, 4, 60
HEADS = {"1M": (224, 640), "5M": (576, 1536)}
"""Width and feed-forward width of the heads."""
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

COLUMNS = (
    keyed("head", "head", left=True),
    keyed("words", "words", ","),
    keyed("dtype", "dtype", left=True),
    keyed("MB read", "megabytes", ".1f"),
    keyed("level: ms", "level_ms", ".3f"),
    keyed("its bytes: ms", "bytes_ms", ".3f"),
    keyed("pass alone: ms", "pass_ms", ".3f"),
    keyed("level over goal", "over_goal", ".2f"),
)


def write_head(folder: Path, size: str, words: int) -> None:
    """A random EAGLE-3 head in its authors' layout."""
    h, m = HEADS[size]
    heads, keys = h // 32, 32
    shapes = {
        "fc.weight": (h, 3 * WIDTH), "embed_tokens.weight": (WORDS, h), "norm.weight": (h,),
        "lm_head.weight": (words, h), "midlayer.self_attn.q_proj.weight": (h, 2 * h),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * h),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * h), "midlayer.self_attn.o_proj.weight": (h, h),
        "midlayer.mlp.gate_proj.weight": (m, h), "midlayer.mlp.up_proj.weight": (m, h),
        "midlayer.mlp.down_proj.weight": (h, m),
        **{f"midlayer.{norm}.weight": (h,) for norm in NORMS},
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    if words < WORDS:
        kept = torch.arange(words) * (WORDS // words)
        tensors["d2t"] = kept - torch.arange(words)
    config = {
        "hidden_size": h, "intermediate_size": m, "num_attention_heads": heads, "num_key_value_heads": 1,
        "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "draft_vocab_size": words,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3],
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")


class Levels(Observer):
    """Notes how long each level takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = math.nan

    def stage(self, name: str) -> "Levels":
        return self

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def measured(folder: Path, target: TransformersModel, size: str, words: int) -> dict[str, Any]:
    """Times of a level, of its pass alone, and of reading its bytes, in turns."""
    name = f"{size}-{words}"
    if not (folder / name).exists():
        write_head(folder / name, size, words)
    head = load_eagle3(str(folder / name), target)
    choose_passes(head, "compiled", draft=True)
    cold, watch = Sampling(temperature=0.0), Levels()
    drafter = Eagle3(head, TreeShape.chain(DEPTH), Law.DETERMINISTIC, cold, watch)
    drafter.prefill(torch.arange(PREFIX + 1), torch.randn(PREFIX, 3, WIDTH).to(target.model.dtype))
    net: Any = head.net
    read = sum(
        weight.nbytes
        for part in (net.model.layers, net.model.norm, net.lm_head)
        for weight in part.parameters()
    )
    block = torch.ones(2**26)
    model: Any = drafter.model
    model.run(torch.tensor([5]), (-1,))
    token, parents = torch.tensor([7]), (-1, 0)

    def draft() -> None:
        drafter.propose(TorchCoins(0))

    _, pass_ms, block_ms = medians([draft, lambda: model.run(token, parents, 1), block.sum])
    level_ms = float(np.median(watch.seconds[DEPTH:])) * 1e3
    bytes_ms = read / block.nbytes * block_ms
    return {
        "head": size, "words": words, "dtype": str(target.model.dtype).removeprefix("torch."),
        "megabytes": read / 1e6, "level_ms": level_ms, "pass_ms": pass_ms, "bytes_ms": bytes_ms,
        "over_goal": level_ms / (1.3 * bytes_ms + 0.1), "bytes_per_s": 1e3 * block.nbytes / block_ms,
    }  # fmt: skip


def random_target(dtype: torch.dtype) -> TransformersModel:
    """A target of four layers with the width and the words of SmolLM2."""
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    return TransformersModel(model.to(dtype))


def main() -> None:
    """Measure; print and save the figures."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in DTYPES.values():
            target = random_target(dtype)
            rows += [
                measured(Path(scratch), target, size, words)
                for size in HEADS
                for words in (6144, WORDS)
            ]
    table = Table("a level drafted by a trained head", COLUMNS, rows)
    print_and_save("head_levels", {"rows": rows}, table, width=120)


if __name__ == "__main__":
    typer.run(main)
