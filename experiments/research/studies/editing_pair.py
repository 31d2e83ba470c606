"""Train a tiny encoder-decoder pair that edits its source, and write held-out sources for it.

    python -m treespec.experiments.research.studies.editing_pair FOLDER

The answer to a stretch of code is the same code with each `self` renamed to `this`. From code alone a
model learns to guess what comes next, and only slowly to copy; so both models copy random tokens first.
That takes 20 minutes on a busy core, and needs the embedded pair's tokenizer and the standard
library. FOLDER gets the models `target` and `draft`, and `prompts.jsonl` with sources from held-out files:

    treespec run summarise models.target=FOLDER models.draft=null models.dtype=float32 \\
        prompts='{kind: jsonl, path: FOLDER/prompts.jsonl, source: source}'
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import T5Config, T5ForConditionalGeneration

from treespec import load_pair
from treespec.experiments.training.corpus import SourceFile, read_corpus, standard_library
from treespec.files import write_whole

END = 0
"""The token that begins and ends an answer, and pads it."""
LONGEST, PROMPTS = 64, 24
SIZES = {"target": (2, 128), "draft": (1, 64)}
"""Layers of the encoder, and of the decoder; and their width."""
Files = Sequence[SourceFile]


@dataclass(frozen=True)
class Batch:
    """Sources [B, S], answers [B, A] padded with `END`, and the tokens that compete, sorted (None: all)."""

    sources: Tensor
    answers: Tensor
    among: Tensor | None = None


def build(layers: int, width: int, vocabulary: int) -> Any:
    ends: Any = dict.fromkeys(("decoder_start_token_id", "eos_token_id", "pad_token_id"), END)
    config = T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=32,
        d_ff=2 * width,
        num_layers=layers,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        **ends,
        relative_attention_max_distance=LONGEST,
    )
    return T5ForConditionalGeneration(config)


def shuffled(step: int, vocabulary: int, *, batch: int = 64, among: int = 256) -> Batch:
    """Texts of random tokens to copy: short ones first, then longer ones, at last with repetitions."""
    longest = min(max(16, 16 + (step - 800) // 12), 48)
    length = int(torch.randint(8, longest + 1, ()))
    tokens = (torch.randperm(vocabulary - 1)[:among] + 1).sort().values
    order = torch.rand(batch, among).argsort(1)[:, :length]
    if step >= 1200 and step % 2:
        order = order.gather(1, torch.randint(length, (batch, length)))
    ends = torch.full((batch, 1), END)
    return Batch(tokens[order], torch.cat([tokens[order], ends], 1), torch.cat([ends[0], tokens]))


def stretch(files: Files, tokenizer: Any, length: int, rng: random.Random) -> str:
    """At most this many tokens of code that begin at a line of a file."""
    text = rng.choice(files).text
    begin = text.rfind("\n", 0, rng.randrange(len(text))) + 1
    ids = tokenizer.encode(text[begin : begin + 8 * length])[:length]
    return tokenizer.decode(ids) if len(ids) == length else stretch(files, tokenizer, length, rng)


def edits(files: Files, tokenizer: Any, rng: random.Random, *, batch: int = 32) -> Batch:
    """Stretches of code, and the same code edited."""
    length = rng.randint(LONGEST // 4, LONGEST)
    texts = [stretch(files, tokenizer, length, rng) for _ in range(batch)]
    sources = [tokenizer.encode(text)[:length] for text in texts]
    least = min(map(len, sources))
    read = torch.tensor([ids[:least] for ids in sources])
    codes = [tokenizer.decode(ids).replace("self", "this") for ids in read.tolist()]
    answers = [torch.tensor([*tokenizer.encode(code), END]) for code in codes]
    return Batch(read, pad_sequence(answers, batch_first=True, padding_value=END))


def loss_of(model: Any, batch: Batch) -> tuple[Tensor, float]:
    """Mean cross-entropy of the answers, and the share of their tokens that the model ranks first."""
    before = nn.functional.pad(batch.answers[:, :-1], (1, 0), value=END)
    read = model.encoder(input_ids=batch.sources).last_hidden_state
    states = model.decoder(input_ids=before, encoder_hidden_states=read).last_hidden_state
    rows, wanted = model.shared.weight, batch.answers
    if batch.among is not None:
        rows, wanted = rows[batch.among], torch.searchsorted(batch.among, wanted)
    kept = (batch.answers == END).cumsum(1) <= 1
    logits = (states * model.config.d_model**-0.5)[kept] @ rows.T
    right = (logits.argmax(-1) == wanted[kept]).float().mean()
    return nn.functional.cross_entropy(logits, wanted[kept]), float(right)


def train(
    model: Any, phase: str, batch_of: Callable[[int], Batch], steps: int, rate: float, *, last: bool
) -> None:
    """Train at a rate that rises, and falls in the last phase; say every few seconds how it goes."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    began = said = time.monotonic()
    for step in range(steps):
        rising = (step + 1) / (0.1 * steps if last else 200)
        falling = 1.5 * (1 - step / steps) if last else 1
        optimizer.param_groups[0]["lr"] = rate * min(1, rising, falling)
        loss, right = loss_of(model, batch_of(step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (now := time.monotonic()) - said > 5 or step == steps - 1:
            said = now
            typer.echo(f"{phase}: {now - began:4.0f} s, step {step}: {loss:.2f}, {right:.0%} right")


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the pair and the prompts.")],
    shuffles: Annotated[int, typer.Option(help="Steps on tokens in random order.")] = 1600,
    codes: Annotated[int, typer.Option(help="Steps on code.")] = 800,
) -> None:
    """Train the pair, and write it with its prompts."""
    tokenizer: Any = load_pair("embedded").tokenizer
    corpus, words = read_corpus(standard_library()), len(tokenizer)
    copies = partial(shuffled, vocabulary=words)
    for name, (layers, width) in SIZES.items():
        torch.manual_seed(0)
        model = build(layers, width, words)
        train(model, f"{name}, shuffled", copies, shuffles, 2e-3, last=False)
        code = partial(edits, corpus.training, tokenizer, random.Random(0))
        train(model, f"{name}, code", lambda _, code=code: code(), codes, 1e-3, last=True)
        with torch.no_grad():
            held_out = edits(corpus.held_out, tokenizer, random.Random(1), batch=256)
            typer.echo(f"{name}: {loss_of(model, held_out)[1]:.1%} right on held-out code")
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rng = random.Random(2)
    held_out_code = partial(stretch, corpus.held_out, tokenizer)
    texts = [held_out_code(rng.randint(LONGEST // 2, LONGEST), rng) for _ in range(PROMPTS)]
    lines = "".join(json.dumps({"source": text}) + "\n" for text in texts)
    write_whole(folder / "prompts.jsonl", lines)


if __name__ == "__main__":
    typer.run(main)
