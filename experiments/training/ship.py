"""Make a trained head one that comes with treespec: lean files, and a card written from what was measured.

    python -m treespec.experiments.training.ship trained/smollm2 eagle3 smollm2-eagle3

The arguments are the folder of a finished `treespec train`, the draft in it, and the name by which configs
will take it (`draft: {source: eagle3, model: smollm2-eagle3}`). Its weights are stored in bfloat16; rows of
the target's head were left out when it was trained. The target is loaded once, for the share of its
probability that the head's vocabulary covers.
"""

from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import load_file

from treespec.draft.trained.checkpoint import read_checkpoint
from treespec.draft.trained.shipped import FOLDER
from treespec.draft.trained.vocabulary import kept_tokens
from treespec.draft.trained.writing import write_head
from treespec.errors import TreespecError
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.models import load_models
from treespec.experiments.training.head_card import Covered, card, covered
from treespec.experiments.training.held_out_answers import HeldOut, TargetSays
from treespec.experiments.training.on_a_gpu.lean_heads import short
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.trained import Trained
from treespec.files import write_whole
from treespec.models.reading import WEIGHTS


def ship(trained: Path, draft: str, name: str, into: Path = FOLDER) -> Path:
    """Write a trained head and its card into a new folder; returns the folder.

    Args:
        trained: the folder of a training.
        draft: the name of the draft.
        name: of the shipped head.
        into: where shipped heads stand.

    Raises:
        ConfigError: if there is no such head, or it is no head of one file of safetensors.
        InvalidArgument: if there is a head of this name already.
    """
    config = load_training(trained / "config.yaml")
    result = Trained.read(trained / draft)
    if result is None:
        raise ConfigError(
            f"{trained / draft} holds no finished draft: `treespec train` goes on with it"
        )
    source = trained / draft / "head"
    if result.family not in ("eagle", "eagle3", "block"):
        raise ConfigError(
            f"{source} is of the family {result.family!r}: ship a head of eagle, eagle3 or block"
        )
    asked = ModelsConfig(target=config.target, draft="none", dtype="float32", passes=None)
    target = load_models(asked).target
    checkpoint = read_checkpoint(str(source))
    kept, rows = kept_tokens(checkpoint, target.vocab_size)
    coverage = Covered(rows, target.vocab_size)
    if kept is not None:
        says = TargetSays(target, HeldOut.load(trained / "held_out.json"))
        coverage = covered(says, kept)
    tensors = {key: short(tensor) for key, tensor in load_file(source / WEIGHTS).items()}
    folder, size = into / name, sum(tensor.nbytes for tensor in tensors.values())
    said = card(name, config, result, coverage, size)
    write_head(folder, checkpoint.config, tensors)
    write_whole(folder / "README.md", said)
    return folder


def main(
    trained: Annotated[Path, typer.Argument(help="Folder of a finished training.")],
    draft: Annotated[str, typer.Argument(help="The draft in it, such as eagle3.")],
    name: Annotated[str, typer.Argument(help="Its name from now on: TARGET-FAMILY.")],
) -> None:
    """Put a trained head among those that come with treespec."""
    try:
        folder = ship(trained, draft, name)
    except TreespecError as error:
        raise typer.BadParameter(str(error)) from None
    sizes = sum(path.stat().st_size for path in FOLDER.glob("*/*"))
    typer.echo(f"written: {folder}; all shipped heads together: {sizes / 1e6:.1f} MB")


if __name__ == "__main__":
    typer.run(main)
