"""The complete recipe, from a folder of source files to the models and their card."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treespec.experiments.training.card import Measurement, Run, write_card
from treespec.experiments.training.corpus import (
    Corpus,
    SourceFile,
    choose_prompts,
    read_corpus,
    size_of,
    write_held_out,
)
from treespec.experiments.training.evaluate import measure_pair
from treespec.experiments.training.pretraining import (
    distillation_loss,
    next_token_loss,
    train_model,
)
from treespec.experiments.training.sizes import PairSize, build_model, save_model
from treespec.experiments.training.tokenizer import tokenize, train_tokenizer
from treespec.files import write_whole

# Training loss is measured on every 16th training file, about as much text as is held out.
TRAINING_SAMPLE = 16

logger = logging.getLogger(__name__)


class RecipeError(ValueError):
    """The requested pair cannot be trained; the message says why."""


def make_pair(
    out: Path,
    work: Path,
    folder: Path,
    pair: PairSize,
    target_tokens: int,
    draft_tokens: int,
    seed: int,
    command: str,
) -> None:
    """Train the target, then the draft, and write both to `out`; `work` holds resumable checkpoints."""
    corpus = read_corpus(folder)
    if not corpus.training or not corpus.held_out:
        raise RecipeError(
            f"{folder} must contain Python files for training and held-out ones: use a larger corpus"
        )
    claim(work, {"corpus": corpus.sha256, "pair": repr(pair), "seed": seed})
    out.mkdir(parents=True, exist_ok=True)
    write_held_out(choose_prompts(corpus.held_out), out / "held_out.jsonl")

    tokenizer = train_tokenizer((file.text for file in corpus.training), pair.vocab, pair.context)
    files = tokenize(corpus.training, tokenizer)
    logger.info("training text: %d files, %d tokens", len(files), sum(map(len, files)))

    target = build_model(pair.target, pair, tokenizer, seed)
    target_progress = train_model(
        target,
        files,
        next_token_loss,
        pair.target_schedule,
        target_tokens,
        seed,
        work / "target.pt",
    )
    target = save_model(target, tokenizer, out / "target")

    draft = build_model(pair.draft, pair, tokenizer, seed + 1)
    draft_progress = train_model(
        draft,
        files,
        distillation_loss(target),
        pair.draft_schedule,
        draft_tokens,
        seed + 1,
        work / f"draft-of-{target_progress.tokens}.pt",
    )
    draft = save_model(draft, tokenizer, out / "draft")

    run = Run(
        command=command,
        corpus=corpus,
        pair=pair,
        seed=seed,
        target=target,
        draft=draft,
        target_progress=target_progress,
        draft_progress=draft_progress,
        training_tokens=sum(map(len, files)),
        measurements=measure(target, draft, tokenizer, corpus, pair),
    )
    write_card(run, out / "MODEL_CARD.md")


def claim(work: Path, identity: dict[str, str | int]) -> None:
    """Raise RecipeError if `work` holds checkpoints for other data, sizes or seed."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "recipe.json"
    text = json.dumps(identity, indent=1)
    if path.exists() and path.read_text() != text:
        raise RecipeError(
            f"{work} holds checkpoints of another recipe (choose another --work): {path.read_text()}"
        )
    write_whole(path, text)


def measure(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    pair: PairSize,
) -> tuple[Measurement, ...]:
    """Evaluate both models on held-out text in short and long blocks, and on a sample of training text."""

    def measured(text: str, files: Sequence[SourceFile], length: int) -> Measurement:
        tokens: list[np.ndarray] = tokenize(files, tokenizer)
        statistics = measure_pair(target, draft, tokens, size_of(files), length)
        logger.info("%s, context %d: %s", text, length, statistics)
        return Measurement(text, length, statistics)

    short, long = pair.target_schedule.length, pair.target_schedule.long_length
    return (
        measured("held out", corpus.held_out, short),
        measured("held out", corpus.held_out, long),
        measured("training sample", corpus.training[::TRAINING_SAMPLE], short),
    )
