"""Measure what encoder-decoders and quantised weights cost, in turns with what they are compared with.

    python -m treespec.experiments.research.benchmarks.other_pairs

- A pass of a BART decoder behind a source against a pass of an OPT decoder that reads as many numbers: both
  run by their own attention under our mask. The goal is a ratio within 10 % of 1.
- SmolLM2 quantised by torchao (int8, weights only) against its float32: decoding plainly as the target, and
  as the draft of its own float32 (a chain of 4).
- SmolLM2 as its own draft with the 6,144 words of `smollm2-eagle3` (the most frequent of what it writes)
  against all its words (FR-Spec, arXiv:2502.14856): a chain of 4, both in float32.

All passes are eager: our packed kernel does not cover int8, so compiled ones would compare kernels.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from safetensors.torch import load_file
from transformers import BartConfig, BartForConditionalGeneration, OPTConfig, OPTForCausalLM

from treespec import Sampling, load_pair
from treespec.draft.trained.shipped import FOLDER
from treespec.experiments.config.schema import ChatPrompts
from treespec.experiments.measure.timing import in_turns, seconds_of, usual_steps
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.models import weights_data
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.models.transformers_model import TransformersModel
from treespec.search.intervals import ratio
from treespec.tree import TreeShape

WIDTH, HEADS, LAYERS, VOCAB, POSITIONS = 768, 12, 6, 8192, 512
ROUNDS, PREFIX, SOURCE, NODES = 40, 128, 128, (1, 4, 16)
PROMPTS, TOKENS, DEPTH = 8, 24, 4

PASSES = (
    keyed("nodes", "nodes"),
    keyed("encoder-decoder, ms", "over_ms", ".2f"),
    keyed("decoder, ms", "under_ms", ".2f"),
    Column("ratio", lambda row: row["ratio"].text()),
)
SPEEDS = (
    keyed("made smaller", "role", left=True),
    keyed("tokens per second", "smaller", ".1f"),
    keyed("whole", "whole", ".1f"),
    Column("ratio", lambda row: row["ratio"].text()),
    keyed("tokens per step", "tokens_per_step", ".2f"),
    keyed("whole", "tokens_per_step_whole", ".2f"),
)


def encoder_decoder() -> TransformersModel:
    """A random BART behind a source. A pass reads 14 matrices of width x width in each decoder layer."""
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCAB, d_model=WIDTH, encoder_layers=1, decoder_layers=LAYERS,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=WIDTH,
            decoder_ffn_dim=4 * WIDTH, max_position_embeddings=POSITIONS, init_std=0.1,
        )
    )  # fmt: skip
    return TransformersModel(model).condition(torch.arange(SOURCE) + 5)


def decoder() -> TransformersModel:
    """A random OPT, with the layers of BART without cross-attention, and as many numbers to read.

    GELU in both: with OPT's ReLU the comparison was one of activations (0.5 of 20 ms over one node).
    """
    model = OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, ffn_dim=5 * WIDTH,
            num_attention_heads=HEADS, max_position_embeddings=POSITIONS, word_embed_proj_dim=WIDTH,
            activation_function="gelu", init_std=0.1,
        )
    )  # fmt: skip
    return TransformersModel(model, attention="transformers")


def passes(say: Callable[[str], None]) -> list[dict[str, Any]]:
    models, rows = (encoder_decoder(), decoder()), []
    for model in models:
        model.prefill(torch.arange(PREFIX) % 1000 + 5)
    for nodes in NODES:
        say(f"passes over {nodes} nodes")
        tokens, parents = torch.arange(nodes) + 5, (-1, *[0] * (nodes - 1))

        def run(
            model: TransformersModel,
            tokens: torch.Tensor = tokens,
            parents: tuple[int, ...] = parents,
        ) -> None:
            model.run(tokens, parents)
            model.keep(())

        works = {i: partial(seconds_of, partial(run, model)) for i, model in enumerate(models)}
        over, under = map(np.array, in_turns(works, ROUNDS).values())
        rows.append({
            "nodes": nodes, "over_ms": 1e3 * np.median(over), "under_ms": 1e3 * np.median(under),
            "ratio": ratio(over, under),
        })  # fmt: skip
    return rows


def words() -> torch.Tensor:
    """The tokens that the head `smollm2-eagle3` knows."""
    return load_file(FOLDER / "smollm2-eagle3" / "model.safetensors")["t2d"].nonzero()[:, 0]


def speeds(target: str, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tokens per second with a model that is made smaller and with the whole float32 one, in turns."""
    whole = load_pair(target, target, dtype="float32")
    small = load_pair(target, target, dtype="float32", quantised="int8-weight-only",
                      draft_quantised="int8-weight-only")  # fmt: skip
    kind = ChatPrompts(kind="chat", count=PROMPTS)
    prompts = [prompt.ids for prompt in encode(read_prompts(kind)[:PROMPTS], kind, whole.tokenizer)]
    cold = Sampling(temperature=0.0)
    rows = []
    trimmed: Any = whole.draft.of_tokens(words())
    for role, depth, pair in (
        ("int8, as the target, plain", 0, small),
        (f"int8, as its own draft, chain {DEPTH}", DEPTH, replace(whole, draft=small.draft)),
        (f"fewer words, as its own draft, chain {DEPTH}", DEPTH, replace(whole, draft=trimmed)),
    ):
        shape, pairs = TreeShape.chain(depth), (pair, whole)
        taken, steps = np.empty((2, PROMPTS)), [0, 0]
        for i, prompt in enumerate(prompts):
            say(f"{role}: text {i + 1} of {PROMPTS}")
            for side in (0, 1) if i % 2 else (1, 0):
                start = time.perf_counter()
                text = usual_steps(pairs[side], shape, cold, torch.tensor(prompt), TOKENS)
                steps[side] += len(list(text))
                taken[side, i] = time.perf_counter() - start
        tokens = PROMPTS * TOKENS
        rows.append({
            "role": role, "smaller": tokens / taken[0].sum(), "whole": tokens / taken[1].sum(),
            "ratio": ratio(taken[1], taken[0]), "tokens_per_step": tokens / steps[0],
            "tokens_per_step_whole": tokens / steps[1],
        })  # fmt: skip
    models = {"float32": weights_data(whole.target), "int8": weights_data(small.target)}
    return rows, models


def main(target: str = "smollm2") -> None:
    """Measure, print and save the figures; `target`: the model that is quantised."""
    torch.manual_seed(0)
    with Reporter(Console()).task("measuring") as say:
        of_passes = passes(say)
        of_speeds, models = speeds(target, say)
    figures = {"target": target, "passes": of_passes, "speeds": of_speeds, "weights": models}
    print_and_save(
        "other_pairs", figures, Table("passes of equal size", PASSES, of_passes),
        Table(f"{target}, prefill included", SPEEDS, of_speeds), width=120,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
