"""`python -m treespec.experiments.training.drafts`: drafts of other sizes and training for the embedded
target.

For studies of what the quality of a draft does to trees and chains. Each is distilled from the embedded
target by the recipe of the embedded draft, on a smaller budget of tokens, whose decay to zero it goes
through whole: so a shorter run is a finished model, not one that was stopped.
"""

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.training.corpus import read_corpus, standard_library
from treespec.experiments.training.sizes import EMBEDDED, ModelSize, build_model, save_model
from treespec.experiments.training.tokenizer import tokenize
from treespec.experiments.training.train import distillation_loss, train

SIZES = {
    "wide": EMBEDDED.draft,
    "narrow": ModelSize(hidden=64, layers=1, intermediate=192, heads=2, kv_heads=1, head_dim=32),
}
TOKENS = {"100k": 100_000, "400k": 400_000}

SCHEDULE = replace(EMBEDDED.draft_schedule, batch_tokens=2048, warmup_steps=10)
"""Smaller batches than the embedded draft's, or the smallest budget would be two dozen steps."""

logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="where the drafts go, a folder for each")] = Path(
        "drafts"
    ),
    corpus: Annotated[Path | None, typer.Option(help="default: this Python's library")] = None,
    seed: Annotated[int, typer.Option()] = 1,
) -> None:
    """Train the drafts that are not there yet."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from treespec.experiments.training.__main__ import EMBEDDED_FOLDER

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    wanted = [(size, tokens) for size in SIZES for tokens in TOKENS]
    missing = [(s, t) for s, t in wanted if not (out / f"{s}-{t}" / "config.json").exists()]
    if not missing:
        typer.echo(f"all {len(wanted)} drafts are in {out}")
        return
    for size, tokens in missing:
        folder = out / f"{size}-{tokens}"
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise typer.BadParameter(f"{folder} is there, and is no draft: move it away")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER / "target")
    target = LlamaForCausalLM.from_pretrained(EMBEDDED_FOLDER / "target").float().eval()
    training = read_corpus(corpus or standard_library()).training
    if not training:
        raise typer.BadParameter(f"{corpus} holds no Python files to train on")
    files = tokenize(training, tokenizer)
    for size, tokens in missing:
        draft = build_model(SIZES[size], EMBEDDED, tokenizer, seed)
        with tempfile.TemporaryDirectory() as work:
            progress = train(
                draft, files, distillation_loss(target), SCHEDULE, TOKENS[tokens], seed,
                Path(work) / "draft.pt",
            )  # fmt: skip
        save_whole(draft, tokenizer, out / f"{size}-{tokens}")
        logger.info(
            "%s: %d parameters, %d tokens, %.0f s, loss %.3f nats above the target",
            out / f"{size}-{tokens}", draft.num_parameters(), progress.tokens, progress.seconds,
            progress.loss,
        )  # fmt: skip
    typer.echo(f"{len(missing)} drafts written to {out}")


def save_whole(draft: Any, tokenizer: Any, folder: Path) -> None:
    """Save a draft whole or not at all: its config is written first, and would count as a draft."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as partial:
        save_model(draft, tokenizer, Path(partial) / folder.name)
        (Path(partial) / folder.name).rename(folder)  # which is not there, or empty


if __name__ == "__main__":
    app()
