"""The model card, written from what a training run used and measured."""

import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import LlamaForCausalLM

from treespec.experiments.records.manifest import environment
from treespec.experiments.report.table import Column, Table, keyed, markdown
from treespec.experiments.training.corpus import (
    EXCLUDED_FOLDERS,
    HELD_OUT_PER_MILLE,
    Corpus,
    size_of,
)
from treespec.experiments.training.evaluate import PairStatistics
from treespec.experiments.training.loop import Progress
from treespec.experiments.training.precision import has_bfloat16
from treespec.experiments.training.sizes import PairSize
from treespec.files import write_whole

LICENCE = "PSF-2.0"


@dataclass(frozen=True)
class Measurement:
    """Pair statistics on a named text at one context length."""

    text: str
    length: int
    statistics: PairStatistics


@dataclass(frozen=True)
class Run:
    command: str
    corpus: Corpus
    pair: PairSize
    seed: int
    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    target_progress: Progress
    draft_progress: Progress
    training_tokens: int
    measurements: tuple[Measurement, ...]


def write_card(run: Run, path: Path) -> None:
    sections = [FRONT, _data(run), _models(run), _recipe(run), _losses(run), _agreement(run)]
    write_whole(path, "\n\n".join(sections) + "\n")


FRONT = f"""---
license: psf-2.0
language: code
library_name: transformers
---

# The embedded pair

A small target and a smaller draft model for Python text, made to study speculative decoding on a
CPU. They complete code in form, not in meaning: do not use them to write programs.
Licence of the training text: {LICENCE} (Python Software Foundation License, version 2).
The weights are derived from that text and are offered under the same terms."""


def _data(run: Run) -> str:
    training, held_out = run.corpus.training, run.corpus.held_out
    excluded = ", ".join(f"`{name}`" for name in sorted(EXCLUDED_FOLDERS))
    return f"""## Data

The `.py` files of the standard library of {platform.python_implementation()} \
{platform.python_version()}, without folders named {excluded}.

| part | files | bytes |
| --- | ---: | ---: |
| training | {len(training)} | {size_of(training):,} |
| held out | {len(held_out)} | {size_of(held_out):,} |

sha256 of all paths and texts (`Corpus.sha256`): `{run.corpus.sha256}`

A file is held out, whole and from tokenizer and models alike, when the first four bytes of the
sha256 of its relative path, as a big-endian number modulo 1000, are below {HELD_OUT_PER_MILLE}.
Held-out files may resemble training files (the tables in `encodings/` do). `held_out.jsonl` holds
the first 16 KB of held-out files that make good prompts."""


def _models(run: Run) -> str:
    return f"""## Models

Llama architecture, tied embeddings, rotary base 10000, {run.pair.context} positions, bfloat16.
One byte-level BPE tokenizer of {run.pair.vocab} entries; `<|endoftext|>` separates files.

- target: {run.target.num_parameters():,} parameters, `{run.pair.target}`
- draft: {run.draft.num_parameters():,} parameters, `{run.pair.draft}`"""


def _recipe(run: Run) -> str:
    processor = environment()["hardware"]["cpu"] or platform.machine()
    passes = "bfloat16" if has_bfloat16("cpu") else "float32"
    progress = [("target", run.target_progress), ("draft", run.draft_progress)]
    columns = [
        Column[tuple[str, Progress]]("model", lambda row: row[0], left=True),
        Column[tuple[str, Progress]]("tokens seen", lambda row: f"{row[1].tokens:,}"),
        Column[tuple[str, Progress]](
            "epochs", lambda row: f"{row[1].tokens / run.training_tokens:.2f}"
        ),
        Column[tuple[str, Progress]]("steps", lambda row: f"{row[1].step}"),
        Column[tuple[str, Progress]]("wall time", lambda row: f"{row[1].seconds / 60:.0f} min"),
        Column[tuple[str, Progress]](
            "tokens/s", lambda row: f"{row[1].tokens / row[1].seconds:,.0f}"
        ),
    ]
    return f"""## Recipe

    {run.command}

Seed {run.seed}. Float32 weights, passes in {passes}, gradients clipped to norm 1. Muon (momentum
0.95, Nesterov) for matrices inside layers, AdamW (0.9, 0.95) for embeddings and norms; linear
warm-up, constant rate, linear decay to zero. Blocks are packed files, reshuffled every epoch.

- target: `{run.pair.target_schedule}`
- draft: `{run.pair.draft_schedule}`

The target learns the next token. The draft learns the target's distribution on the same text:
KL(target, draft) over the full vocabulary at temperature 1.

{markdown(Table("", columns, progress))}

Hardware: {processor}, CPU only, torch threads: {torch.get_num_threads()}. Times are wall clock, \
on a machine that did other work too.
torch {torch.__version__}, transformers {transformers.__version__}. Another processor or number of \
threads rounds differently:
a rerun gives a pair like this one, not the same bits."""


def _losses(run: Run) -> str:
    losses = [
        {
            "model": name, "text": item.text, "context": item.length,
            "tokens": item.statistics.tokens, "nats": nats,
            "bits": item.statistics.bits_per_byte(nats),
        }
        for item in run.measurements
        for name, nats in (
            ("target", item.statistics.target_nats),
            ("draft", item.statistics.draft_nats),
        )
    ]  # fmt: skip
    columns = [
        keyed("model", "model", left=True),
        keyed("text", "text", left=True),
        keyed("context", "context"),
        keyed("tokens", "tokens", ","),
        keyed("nats per token", "nats", ".4f"),
        keyed("bits per byte", "bits", ".4f"),
    ]
    schedule = run.pair.target_schedule
    return f"""## Losses

Measured on CPU in float32 with the stored bfloat16 weights. Text is packed and cut into blocks of
the context length; a block starts without context. Positions beyond
{schedule.length} were only seen in the last {schedule.long_share:.0%} of training: compare both \
contexts before relying on long prompts.

{markdown(Table("", columns, losses))}"""


def _agreement(run: Run) -> str:
    def share(rank: int, item: Measurement) -> str:
        return f"{item.statistics.ranks[rank]:.4f}"

    ranks = range(len(run.measurements[0].statistics.ranks))
    columns = [
        Column[Measurement]("text", lambda item: item.text, left=True),
        Column[Measurement]("context", lambda item: f"{item.length}"),
        Column[Measurement]("alpha", lambda item: f"{item.statistics.acceptance:.4f}"),
        *(Column[Measurement](f"k={rank + 1}", partial(share, rank)) for rank in ranks),
    ]
    return f"""## How well the two agree

Same measurement. alpha = E[sum over v of min(target, draft)] at temperature 1; the columns k give
the share of positions where the target's most probable token is the draft's k-th choice (k=1 is
top-1 agreement).

{markdown(Table("", columns, run.measurements))}"""
