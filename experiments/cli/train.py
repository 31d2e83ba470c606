"""`treespec train`: texts to train on, and training of draft models and heads."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Quiet,
    echo,
    friendly,
    json_text,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples

_train = typer.Typer(no_args_is_help=True)
app.add_typer(
    _train,
    name="train",
    help="Write texts for training drafts and heads.",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec train data texts --target smollm2 --tokens 200000",
        "treespec train data texts-of-mine --target smollm2 --texts docs",
    ),
)


@_train.callback()
def _training() -> None:
    """Write texts for training drafts and heads."""


@_train.command(
    "data",
    epilog=examples(
        "treespec train data texts --target smollm2 --tokens 200000",
        "treespec train data texts --target smollm2 --device cuda --batch 512 --tokens 8000000",
        "treespec train data code --tokens 50000 --greedy 1",
        "treespec train data texts-of-mine --target smollm2 --texts docs",
        "treespec train data answers --target smollm2 --texts questions --continue",
    ),
)
def data_command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder to write, or to go on with.")
    ],
    target: Annotated[
        str, typer.Option("--target", help="The target: embedded, a folder, a hub id, or smollm2.")
    ] = "embedded",
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens of all answers; may grow later.")
    ] = 200_000,
    batch: Annotated[int, typer.Option("--batch", help="Texts written side by side.")] = 64,
    answer: Annotated[int, typer.Option("--answer", help="Maximum tokens of an answer.")] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of sampled answers and invented prompts.")
    ] = 1.0,
    greedy: Annotated[
        float, typer.Option("--greedy", help="Share of answers that are written greedily.")
    ] = 0.5,
    invented: Annotated[
        float, typer.Option("--invented", help="Share of prompts that a chat model invents.")
    ] = 0.5,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            metavar="FOLDER",
            help="Take the .txt, .md, .py and .jsonl files of a folder as they are; nothing is written.",
        ),
    ] = None,
    continued: Annotated[
        bool, typer.Option("--continue", help="Let the target continue or answer these texts.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts and answers.")] = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of the target.")] = "bfloat16",
    device: Annotated[str, typer.Option("--device", help="Device of the target.")] = "cpu",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let a target write texts to train on; the same command goes on with a killed one.

    A chat model answers filled templates and prompts that it invents; the embedded target continues code.
    Loops, repeats, empty answers and held-out prompts are dropped.
    """
    with friendly(debug, "interrupted; the same command goes on where it stopped"):
        from treespec.experiments.config.files import require_within
        from treespec.experiments.config.places import require_inputs
        from treespec.experiments.errors import ConfigError

        require_inputs({"--target": target})
        require_within("--tokens", tokens, 1, 10**10)
        require_within("--batch", batch, 1, 2**16)
        require_within("--answer", answer, 1, 2**20)
        require_within("--seed", seed, 0, 2**62)
        _require_shares(temperature, {"--greedy": greedy, "--invented": invented})
        if continued and texts is None:
            raise ConfigError("--continue needs a folder of texts: give --texts FOLDER")
        if texts is not None and not texts.is_dir():
            raise ConfigError(f"--texts {texts}: there is no such folder")
        from treespec.experiments.report.terminal import print_finding
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.experiments.training.texts.counts import finding
        from treespec.experiments.training.texts.write_texts import Recipe, write_texts
        from treespec.models.load import load_pair

        calm_transformers()
        reporter = Reporter(progress(quiet))
        with reporter.task(f"loading {target}"):
            pair = load_pair(target, "none", dtype=dtype, device=device, passes="eager")
        recipe = Recipe(
            target=target,
            tokens=tokens,
            batch=batch,
            answer=answer,
            temperature=temperature,
            greedy=greedy,
            invented=invented,
            seed=seed,
            texts=texts,
            continued=continued,
        )
        written = write_texts(out, recipe, pair, reporter)
        manifest = written.data.manifest
        if as_json:
            echo(json_text({"folder": out, "recipe": manifest["recipe"], **manifest["counts"]}))
        elif not quiet:
            print_finding(finding(manifest, written.seconds, written.tokens), output())
            echo(f"written: {out}")


def _require_shares(temperature: float, shares: dict[str, float]) -> None:
    """Reject shares outside 0 to 1, and a temperature that is none."""
    from treespec.experiments.errors import ConfigError

    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{name} = {share}: must be between 0 and 1")
    if not 0 <= temperature <= 100:
        raise ConfigError(f"--temperature = {temperature}: must be between 0 and 100")
