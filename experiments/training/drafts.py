"""`python -m treespec.experiments.training.drafts`: train further drafts for the embedded target.

For studies of how the quality of a draft affects trees and chains. The drafts differ in size and in
training tokens. Each is distilled from the embedded target by the recipe of the embedded draft with a
smaller token budget. The learning rate decays to zero within that budget, so a shorter run is a finished
model and not an interrupted one.
"""

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.training.corpus import read_corpus, standard_library
from treespec.experiments.training.pretraining import distillation_loss, train_model
from treespec.experiments.training.sizes import EMBEDDED, ModelSize, build_model, save_model
from treespec.experiments.training.tokenizer import tokenize

SIZES = {
    "wide": EMBEDDED.draft,
    "narrow": ModelSize(hidden=64, layers=1, intermediate=192, heads=2, kv_heads=1, head_dim=32),
}
TOKENS = {"100k": 100_000, "400k": 400_000}

SCHEDULE = replace(EMBEDDED.draft_schedule, batch_tokens=2048, warmup_steps=10)
"""Smaller batches than for the embedded draft: otherwise the smallest budget would be two dozen steps."""

logger = logging.getLogger(__name__)
app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Annotated[
        Path, typer.Option(help="folder for the drafts, with a subfolder for each")
    ] = Path("drafts"),
    corpus: Annotated[
        Path | None,
        typer.Option(help="folder of Python files (default: the standard library of this Python)"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of initialisation and data order")] = 1,
) -> None:
    """Train the drafts that do not exist yet."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from treespec.experiments.training.__main__ import EMBEDDED_FOLDER

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    wanted = {out / f"{size}-{tokens}": (size, tokens) for size in SIZES for tokens in TOKENS}
    missing = {f: draft for f, draft in wanted.items() if not (f / "config.json").exists()}
    if not missing:
        typer.echo(f"all {len(wanted)} drafts exist in {out}")
        return
    for folder in missing:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise typer.BadParameter(f"{folder} exists and is not a draft: move it away")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDED_FOLDER / "target")
    target = LlamaForCausalLM.from_pretrained(EMBEDDED_FOLDER / "target").float().eval()
    training = read_corpus(corpus or standard_library()).training
    if not training:
        raise typer.BadParameter(f"{corpus} contains no Python files to train on")
    files = tokenize(training, tokenizer)
    for folder, (size, tokens) in missing.items():
        draft = build_model(SIZES[size], EMBEDDED, tokenizer, seed)
        with tempfile.TemporaryDirectory() as work:
            progress = train_model(
                draft, files, distillation_loss(target), SCHEDULE, TOKENS[tokens], seed,
                Path(work) / "draft.pt",
            )  # fmt: skip
        save_whole(draft, tokenizer, folder)
        logger.info(
            "%s: %d parameters, %d tokens, %.0f s, loss %.3f nats above the target",
            folder, draft.num_parameters(), progress.tokens, progress.seconds, progress.loss,
        )  # fmt: skip
    typer.echo(f"{len(missing)} drafts written to {out}")


def save_whole(draft: Any, tokenizer: Any, folder: Path) -> None:
    """Save a draft atomically: its config is written first, so a partial folder would count as a draft."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        save_model(draft, tokenizer, Path(temporary) / folder.name)
        (Path(temporary) / folder.name).rename(folder)  # `folder` is missing or empty


if __name__ == "__main__":
    app()
