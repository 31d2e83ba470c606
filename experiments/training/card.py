"""The model card: only what this run used and measured."""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import LlamaForCausalLM

from treespec.experiments.training.corpus import (
    EXCLUDED_FOLDERS,
    HELD_OUT_PER_MILLE,
    Corpus,
    SourceFile,
)
from treespec.experiments.training.evaluate import PairStatistics
from treespec.experiments.training.sizes import PairSize, Schedule
from treespec.experiments.training.train import Progress
from treespec.search.whole_file import write_whole

LICENCE = "PSF-2.0"


@dataclass(frozen=True)
class Measurement:
    """Pair statistics on one text at one context length, with the text's name."""

    text: str
    length: int
    statistics: PairStatistics


@dataclass(frozen=True)
class Run:
    """Everything the card reports."""

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
    """Write the card of `run` as Markdown."""
    sections = [_front(), _data(run), _models(run), _recipe(run), _losses(run), _agreement(run)]
    write_whole(path, "\n\n".join(sections) + "\n")


def _front() -> str:
    return f"""---
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
| training | {len(training)} | {_size(training):,} |
| held out | {len(held_out)} | {_size(held_out):,} |

sha256 of all paths and texts (`Corpus.sha256`): `{run.corpus.sha256}`

A file is held out, whole and from tokenizer and models alike, when the first four bytes of the
sha256 of its relative path, as a big-endian number modulo 1000, are below {HELD_OUT_PER_MILLE}.
Held-out files may resemble training files (the tables in `encodings/` do). `held_out.jsonl` holds
the first 16 KB of held-out files that make good prompts."""


def _models(run: Run) -> str:
    rows = "\n".join(
        f"| {name} | {model.num_parameters():,} | {size.hidden} | {size.layers} "
        f"| {size.intermediate} | {size.heads} | {size.kv_heads} | {size.head_dim} |"
        for name, model, size in (
            ("target", run.target, run.pair.target),
            ("draft", run.draft, run.pair.draft),
        )
    )
    return f"""## Models

Llama architecture, tied embeddings, rotary base 10000, {run.pair.context} positions, bfloat16.
One byte-level BPE tokenizer of {run.pair.vocab} entries; `<|endoftext|>` separates files.

| model | parameters | hidden | layers | intermediate | heads | key/value heads | head dim |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}"""


def _recipe(run: Run) -> str:
    rows = "\n".join(
        f"| {name} | {progress.tokens:,} | {progress.tokens / run.training_tokens:.2f} "
        f"| {progress.step} | {progress.seconds / 60:.0f} min "
        f"| {progress.tokens / progress.seconds:,.0f} |"
        for name, progress in (("target", run.target_progress), ("draft", run.draft_progress))
    )
    return f"""## Recipe

    {run.command}

Seed {run.seed}. Float32 weights, bfloat16 autocast, gradients clipped to norm 1. Muon (momentum
0.95, Nesterov) for matrices inside layers, AdamW (0.9, 0.95) for embeddings and norms; linear
warm-up, constant rate, linear decay to zero. Blocks are packed files, reshuffled every epoch.

{_schedules(run.pair)}

The target learns the next token. The draft learns the target's distribution on the same text:
KL(target, draft) over the full vocabulary at temperature 1.

| model | tokens seen | epochs | steps | wall time | tokens/s |
| --- | ---: | ---: | ---: | ---: | ---: |
{rows}

Hardware: {_processor()}, CPU only, torch threads: {torch.get_num_threads()}. Times are wall clock, \
on a machine that did other work too.
torch {torch.__version__}, transformers {transformers.__version__}. Another processor or number of \
threads rounds differently:
a rerun gives a pair like this one, not the same bits."""


def _schedules(pair: PairSize) -> str:
    def row(name: str, schedule: Schedule) -> str:
        return (
            f"| {name} | {schedule.muon_lr:g} | {schedule.adamw_lr:g} "
            f"| {schedule.weight_decay:g} (Muon only) | {schedule.warmup_steps} steps "
            f"| last {schedule.decay_share:.0%} | {schedule.batch_tokens} in {schedule.length}s "
            f"| last {schedule.long_share:.0%}: {schedule.long_rows} x {schedule.long_length} |"
        )

    rows = (row("target", pair.target_schedule), row("draft", pair.draft_schedule))
    return (
        "| model | Muon rate | AdamW rate | weight decay | warm-up | decay | batch tokens "
        "| long blocks |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        + "\n".join(rows)
    )


def _losses(run: Run) -> str:
    rows = "\n".join(
        f"| {name} | {item.text} | {item.length} | {item.statistics.tokens:,} | {nats:.4f} "
        f"| {item.statistics.bits_per_byte(nats):.4f} |"
        for item in run.measurements
        for name, nats in (
            ("target", item.statistics.target_nats),
            ("draft", item.statistics.draft_nats),
        )
    )
    schedule = run.pair.target_schedule
    return f"""## Losses

Measured on CPU in float32 with the stored bfloat16 weights. Text is packed and cut into blocks of
the context length; a block starts without context. Positions beyond
{schedule.length} were only seen in the last {schedule.long_share:.0%} of training: compare both \
contexts before relying on long prompts.

| model | text | context | tokens | nats per token | bits per byte |
| --- | --- | ---: | ---: | ---: | ---: |
{rows}"""


def _agreement(run: Run) -> str:
    numbers = range(1, 1 + len(run.measurements[0].statistics.ranks))
    header = " | ".join(f"k={k}" for k in numbers)
    rows = "\n".join(
        f"| {item.text} | {item.length} | {item.statistics.acceptance:.4f} | "
        + " | ".join(f"{share:.4f}" for share in item.statistics.ranks)
        + " |"
        for item in run.measurements
    )
    return f"""## How well the two agree

Same measurement. alpha = E[sum over v of min(target, draft)] at temperature 1; the columns k give
the share of positions where the target's most probable token is the draft's k-th choice (k=1 is
top-1 agreement).

| text | context | alpha | {header} |
| --- | ---: | ---: | {" | ".join("---:" for _ in numbers)} |
{rows}"""


def _size(files: tuple[SourceFile, ...]) -> int:
    return sum(len(file.text.encode()) for file in files)


def _processor() -> str:
    """The processor's name, where the system tells it."""
    description = Path("/proc/cpuinfo")
    if description.exists():
        for line in description.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
