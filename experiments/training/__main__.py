"""`python -m treespec.experiments.training`: train the embedded pair from scratch."""

import logging
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

from treespec.experiments.training.corpus import standard_library
from treespec.experiments.training.recipe import RecipeError, make_pair
from treespec.experiments.training.sizes import EMBEDDED, MINIATURE

EMBEDDED_FOLDER = Path(str(files("treespec"))) / "embedded"

PAIRS = {"embedded": EMBEDDED, "miniature": MINIATURE}

app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Annotated[
        Path, typer.Option(help="folder for the models and their card")
    ] = EMBEDDED_FOLDER,
    work: Annotated[
        Path | None, typer.Option(help="folder for checkpoints; pass it again to resume")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="folder of Python files (default: the standard library of this Python)"),
    ] = None,
    size: Annotated[
        Literal["embedded", "miniature"],
        typer.Option(help="the embedded pair, or a miniature for tests"),
    ] = "embedded",
    target_tokens: Annotated[
        int, typer.Option(min=1, help="tokens to train the target on")
    ] = 4_400_000,
    draft_tokens: Annotated[
        int, typer.Option(min=1, help="tokens to train the draft on")
    ] = 2_500_000,
    seed: Annotated[int, typer.Option(help="seed of initialisation and data order")] = 0,
) -> None:
    """Train the tokenizer, the target and the draft, evaluate them, and write models and model card."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with tempfile.TemporaryDirectory() as fresh:
        try:
            make_pair(
                out=out,
                work=work or Path(fresh),
                folder=corpus or standard_library(),
                pair=PAIRS[size],
                target_tokens=target_tokens,
                draft_tokens=draft_tokens,
                seed=seed,
                command=(
                    f"python -m treespec.experiments.training --size {size} --target-tokens {target_tokens}"
                    f" --draft-tokens {draft_tokens} --seed {seed}"
                ),
            )
        except RecipeError as error:
            raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    app()
