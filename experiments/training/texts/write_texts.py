"""Write a folder of texts for training: from the recipe to the finished folder."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.draft.state import tokenizer_digest
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import environment
from treespec.experiments.run.models import weights_data
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.texts.chat import Chat
from treespec.experiments.training.texts.counts import card_of, counts_of
from treespec.experiments.training.texts.given_texts import as_prompts, as_they_are, read_given
from treespec.experiments.training.texts.leaks import LEAK, Leaks, held_out_prompts
from treespec.experiments.training.texts.prompts_asked import (
    LONGEST_INVENTED,
    CodePrompts,
    FolderPrompts,
    Prompts,
    TemplatePrompts,
)
from treespec.experiments.training.texts.sieve import (
    LOOP,
    MOST_REPEATS,
    SHORTEST_ANSWER,
    Sieve,
    dropped_in_words,
)
from treespec.experiments.training.texts.text_batches import Batches, GivenBatches, WrittenBatches
from treespec.experiments.training.texts.text_data import TextData
from treespec.experiments.training.texts.text_folder import TextFolder
from treespec.experiments.training.texts.words import WORDNET, read_words
from treespec.experiments.training.texts.writing import writer_for
from treespec.models.fingerprint import fingerprint
from treespec.models.known_models import KNOWN

if TYPE_CHECKING:
    from treespec.models.load import Pair

BARREN = 20
"""Batches in a row that keep nothing, after which the texts are given up."""

LICENCES = {"embedded": "PSF-2.0", **dict.fromkeys(KNOWN, "Apache-2.0")}
"""Licences of targets, which hold for what they write."""


@dataclass(frozen=True)
class Recipe:
    """What a folder of texts is made of, besides the target.

    Args:
        target: name of the target.
        tokens: of answers, after which no further batch is begun; a folder can be made larger later.
        batch: texts that are written side by side.
        answer: tokens of an answer at most.
        temperature: of sampled answers and invented prompts.
        greedy: share of answers that are written greedily.
        invented: share of prompts that a chat model invents.
        seed: of everything.
        texts: a folder of texts, instead of our own prompts.
        continued: whether the target continues or answers the folder's texts; else they are taken as they
            are.
    """

    target: str
    tokens: int = 200_000
    batch: int = 64
    answer: int = 256
    temperature: float = 1.0
    greedy: float = 0.5
    invented: float = 0.5
    seed: int = 0
    texts: Path | None = None
    continued: bool = False


@dataclass(frozen=True)
class Written:
    """A folder of texts, and what was written into it now.

    Args:
        data: all texts of the folder.
        tokens: tokens of the answers that were kept now.
        seconds: that writing took now.
    """

    data: TextData
    tokens: int
    seconds: float


def write_texts(
    out: Path,
    recipe: Recipe,
    pair: "Pair",
    reporter: Reporter,
    stopping: Callable[[], bool] = lambda: False,
) -> Written:
    """Write texts to a folder, or go on with it.

    A folder that was killed and gone on with holds the same bytes as one that was not.

    Args:
        out: a new or empty folder, or one that was begun with the same recipe.
        recipe: what to write; `tokens` may differ from the folder's.
        pair: the target and its tokenizer.
        reporter: shows progress, with tokens/s and the time left.
        stopping: is asked after each batch whether to stop before all tokens are written.

    Raises:
        RunFolderError: if the folder is of another recipe (names what differs), in use, damaged or not
            ours; if it cannot be written, as on a full disk: what is finished is kept.
        ConfigError, PromptError: if nothing is kept, or the folder of texts holds none.
    """
    held_out = held_out_prompts(pair.tokenizer)
    with TextFolder(out) as folder:
        batches, about, manifest = _batches(recipe, pair, reporter)
        folder.start(about, {**manifest, **environment()})
        before, start = folder.answer_tokens, time.monotonic()
        kept = TextData.open(out) if any(line.lengths for line in folder.lines) else ()
        _write(folder, batches, Sieve(Leaks(held_out), kept), recipe.tokens, reporter, stopping)
        seconds = time.monotonic() - start
        data = TextData.open(out)
        if folder.answer_tokens > before or folder.own_manifest()["counts"] is None:
            counts = counts_of(data, folder.lines, pair.tokenizer, held_out)
            folder.finish(counts, card_of(folder.own_manifest(), counts))
        return Written(TextData.open(out), folder.answer_tokens - before, seconds)


def _write(
    folder: TextFolder,
    batches: Batches,
    sieve: Sieve,
    tokens: int,
    reporter: Reporter,
    stopping: Callable[[], bool],
) -> None:
    """Append batches until the folder holds so many tokens of answers, or until it is time to stop."""
    done = folder.answer_tokens
    if done:
        reporter.note(
            f"{done:,} tokens of {sum(len(x.lengths) for x in folder.lines):,} texts are there"
        )
    barren, written, shown, start = 0, 0, 0, time.monotonic()
    total = max(0, tokens - done)
    with reporter.units(total, doing="writing", finished="written", counted="tokens") as begin:

        def show(text: str, reached: int) -> None:
            nonlocal shown
            new = min(reached, total) - shown
            shown += new
            begin(text, new)

        def told(new: int) -> None:
            nonlocal written
            written += new
            speed = written / max(1e-9, time.monotonic() - start)
            reached = folder.answer_tokens - done + written - before
            show(f"batch {len(folder.lines) + 1}, {speed:,.0f} tokens/s", reached)

        while folder.answer_tokens < tokens:
            before = written
            candidates = batches.batch(len(folder.lines), told)
            if candidates is None:
                reporter.note(f"the texts end after {folder.answer_tokens:,} of {tokens:,} tokens")
                break
            line = folder.append(*sieve.sift(candidates))
            show("keeping a batch", folder.answer_tokens - done)  # without what was dropped
            barren = 0 if line.lengths else barren + 1
            if barren == BARREN or stopping():
                break
    if not any(line.lengths for line in folder.lines) or barren == BARREN:
        dropped = dropped_in_words(folder.lines[-1].dropped if folder.lines else {})
        raise ConfigError(
            f"{folder.path}: no text of the last {max(1, barren)} batches is kept (dropped of the last "
            f"one: {dropped}): give longer answers (--answer), other texts (--texts) or another target"
        )


def _batches(
    recipe: Recipe, pair: "Pair", reporter: Reporter
) -> tuple[Batches, dict[str, Any], dict[str, Any]]:
    """What makes the batches, the recipe as the manifest has it, and what else the manifest says."""
    about: dict[str, Any] = {
        "target": recipe.target,
        "fingerprint": fingerprint(pair.target.model),
        "tokenizer": tokenizer_digest(pair.tokenizer),
        "vocab_size": pair.target.vocab_size,
        "seed": recipe.seed,
        "batch": recipe.batch,
        "rules": {
            "shortest_answer": SHORTEST_ANSWER,
            "loop": f"{LOOP} tokens in a row more than {MOST_REPEATS} times",
            "leak": f"{LEAK} tokens in a row of a held-out prompt",
        },
    }
    if recipe.texts is not None and not recipe.continued:
        given, digest = read_given(recipe.texts)
        texts = as_they_are(given, pair.tokenizer)
        about |= {"prompts": "given texts", "texts": len(texts), "texts_sha256": digest}
        licences = {f"texts: the folder {recipe.texts}": "its own"}
        what = "The texts were given; the target wrote none of them."
        return GivenBatches(texts, recipe.batch, recipe.seed), about, _manifest(what, licences)
    prompts, (writer, write) = _prompts(recipe, pair, reporter), writer_for(pair)
    about |= prompts.about() | {
        "answer": recipe.answer,
        "temperature": recipe.temperature,
        "greedy": recipe.greedy,
        "dtype": weights_data(pair.target)["dtype"],
        "device": pair.target.device.type,
        "writer": writer,
    }
    batches = WrittenBatches(
        prompts,
        write,
        recipe.batch,
        recipe.answer,
        recipe.temperature,
        recipe.greedy,
        recipe.seed,
        pair.target.max_length,
        LONGEST_INVENTED,
    )
    licence = LICENCES.get(recipe.target, "see the target's card")
    licences = {**prompts.licences, f"answers: {recipe.target}": licence}
    what = "The target itself wrote the answers."
    return batches, about, _manifest(what, licences)


def _manifest(what: str, licences: Mapping[str, str]) -> dict[str, Any]:
    return {"what": what, "licences": dict(licences)}


def _prompts(recipe: Recipe, pair: "Pair", reporter: Reporter) -> Prompts:
    """Where prompts come from: a folder, templates for a chat model, else beginnings of code."""
    if recipe.texts is not None:
        given, digest = read_given(recipe.texts)
        licences = {f"prompts: the folder {recipe.texts}": "its own"}
        return FolderPrompts(as_prompts(given, pair.tokenizer), digest, licences)
    if (chat := Chat.of(pair.tokenizer)) is not None:
        words = read_words()
        if not words.from_wordnet:
            reporter.note(
                f"{WORDNET} is not here (Debian's wordnet-base): nouns come from a short list of our own"
            )
        return TemplatePrompts(chat, words, recipe.invented, pair.end_tokens)
    return CodePrompts(pair.tokenizer)
